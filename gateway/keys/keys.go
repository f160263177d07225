// Package keys holds the API keys of clients: whose they are, which models
// they may ask, until when, and how much in a minute.
//
// It owns the reading of Secrets of type metalfleet.dev/api-key, the decision
// whether a key that somebody brought is one, and what each key has used at
// this gateway. It refuses a Secret that is not whole or says something that
// it does not know: such a Secret opens nothing, because what a broken grant
// meant to allow can only be guessed, and no other key notices. While the API
// server is away all keys stay as they were, and still expire.
//
// All Secrets lie in one namespace that holds nothing else, and those of any
// other are never read. Whoever may write there grants any model of the fleet;
// a tenant who writes Secrets in a namespace of their own grants nothing.
//
// A Secret holds the SHA-256 of its key, never the key. A fast hash is right
// here: a key has 128 random bits or more, so that nobody finds it by trying,
// as a password would be, and a slow hash would only let strangers spend this
// gateway's time. A key names its Secret, so that a wrong one costs one look-up
// and one hash of less than 200 bytes, compared in constant time.
//
// Start reading at Parse and Store.Find; limit.go has the arithmetic.
package keys

import (
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"slices"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/gateway/route"
)

// Bounds of what a client sends as a key: mf_NAME_RANDOM.
const (
	prefix    = "mf_"
	maxName   = 63
	maxRandom = 64
	maxToken  = len(prefix) + maxName + 1 + maxRandom
)

// everyModel in a key's models stands for all of them.
const everyModel = "*"

// Grant is what a key allows.
type Grant struct {
	// Models are served names as clients write them, deployments as
	// NAMESPACE/NAME by whatever name they are asked, or "*".
	Models []string
	// ModelNamespaces are those whose deployments may all be asked.
	ModelNamespaces []string
	// Expires is zero where the key never does.
	Expires time.Time
	// RequestsPerMinute and TokensPerMinute at each gateway; 0 is no limit.
	RequestsPerMinute, TokensPerMinute int64
	// Priority is the most urgent one that its requests may name, and theirs where
	// they name none: lower ones go first, 0 is everybody's.
	Priority int64
	// StrictFields has requests refused whose fields have no effect.
	StrictFields bool
	// Tenant whose key it is. Keys of one tenant share stored responses and cached
	// prompts; a key without a tenant is a tenant of its own.
	Tenant string
}

// Key is one key as its Secret states it, and what it has used.
type Key struct {
	// Name of its Secret.
	Name string
	Grant
	digest [sha256.Size]byte
	uid    string // of its Secret
	label  string // in metrics
	budget *budget
}

// TenantID identifies the tenant of the key in headers and cache keys. Without a
// tenant in its Secret it identifies the Secret itself, so that a key that is deleted
// and created again under the same name finds nothing of the old one.
func (k *Key) TenantID() string {
	if k.Tenant != "" {
		return "tenant/" + k.Tenant
	}
	return "key/" + k.Name + "/" + k.uid
}

// Allows reports whether the key may ask a deployment by a name that clients use.
// An entry that can be NAMESPACE/NAME means that deployment; any other entry means
// the name, also when it passes to another deployment.
func (k *Key) Allows(name string, of route.Key) bool {
	return slices.Contains(k.ModelNamespaces, of.Namespace) ||
		slices.ContainsFunc(k.Models, func(m string) bool {
			return m == everyModel || m == of.String() || m == name && !isFullName(m)
		})
}

// NewToken makes what the holder of the key called name sends. It cannot be
// found again from the Secret.
func NewToken(name string) string { return prefix + name + "_" + rand.Text() }

// Bearer is the key in the headers of a request, as OpenAI's clients send it, or
// where they do not say Authorization, as Anthropic's do; empty where there is
// none, or more than one.
func Bearer(h http.Header) string {
	given := h.Values("Authorization")
	if other := h.Values(anthropic.HeaderKey); len(given) == 0 && len(other) == 1 {
		return strings.Trim(other[0], " ")
	}
	if len(given) != 1 {
		return ""
	}
	scheme, token, _ := strings.Cut(given[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.Trim(token, " ")
}

// nameIn is the Secret that a token says it belongs to.
func nameIn(token string) (name string, ok bool) {
	if len(token) > maxToken {
		return "", false
	}
	rest, ours := strings.CutPrefix(token, prefix)
	end := strings.LastIndexByte(rest, '_')
	if !ours || end < 1 || end > maxName {
		return "", false
	}
	return rest[:end], true
}
