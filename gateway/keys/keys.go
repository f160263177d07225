// Package keys holds the API keys of clients: whose they are, which models they may use,
// until when, and how much per minute.
//
// It owns reading the Secrets of type metalfleet.dev/api-key, authenticating the key of a
// request, and counting what each key has used at this gateway. It rejects a Secret that is
// incomplete or has unknown members: such a Secret authenticates nothing, because the
// intent of a broken grant can only be guessed, and other keys are not affected. While the
// API server is away all keys stay as they were, and still expire.
//
// All Secrets are in one namespace that holds nothing else; other namespaces are never
// read. Anyone who may write there can grant any model of the fleet; a tenant who writes
// Secrets in a namespace of their own grants nothing.
//
// A Secret holds the SHA-256 of its key, never the key. A fast hash is right here: a key
// has at least 128 random bits, so that it cannot be guessed as a password could, and a
// slow hash would only let unauthenticated clients waste this gateway's CPU. A key names
// its Secret, so that a wrong one costs one lookup and one hash of less than 200 bytes,
// compared in constant time.
//
// Start reading at parse and Store.Find; limit.go has the rate limits.
package keys

import (
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/gateway/route"
)

// Limits of a key as clients send it: mf_NAME_RANDOM.
const (
	prefix    = "mf_"
	maxName   = 63
	maxRandom = 64
	maxToken  = len(prefix) + maxName + 1 + maxRandom
)

// everyModel in a key's list of models allows all of them.
const everyModel = "*"

// Grant is what a key allows.
type Grant struct {
	// Models are served names as clients write them, deployments as NAMESPACE/NAME under
	// any name, or "*".
	Models []string
	// ModelNamespaces are the namespaces whose deployments are all allowed.
	ModelNamespaces []string
	// Expires is zero if the key never expires.
	Expires time.Time
	// RequestsPerMinute and TokensPerMinute apply at each gateway; 0 means no limit. Tokens that only the
	// report of a Mac names have the limit of TokensPerMinute at that Mac.
	RequestsPerMinute, TokensPerMinute int64
	// Priority is the most urgent priority that requests of the key may name, and their
	// default. Lower values are served first; 0 is the default of all keys.
	Priority int64
	// StrictFields rejects requests with fields that have no effect.
	StrictFields bool
	// Tenant that owns the key. Keys of one tenant share stored responses and cached
	// prompts; a key without a tenant is a tenant of its own.
	Tenant string
}

// Key is one API key as its Secret defines it, with its usage.
type Key struct {
	// Name of its Secret.
	Name string
	Grant
	access access
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
	a := &k.access
	return a.every || a.namespaces[of.Namespace] || a.deployments[of] || a.names[name]
}

// access has the lists of a grant as sets: a list of models compares each model with all that
// a key may use.
type access struct {
	every             bool
	namespaces, names map[string]bool
	deployments       map[route.Key]bool
}

// access returns what the grant allows.
func (g *Grant) access() access {
	a := access{namespaces: map[string]bool{}, names: map[string]bool{}, deployments: map[route.Key]bool{}}
	for _, n := range g.ModelNamespaces {
		a.namespaces[n] = true
	}
	for _, m := range g.Models {
		switch namespace, name, _ := strings.Cut(m, "/"); {
		case m == everyModel:
			a.every = true
		case isFullName(m):
			a.deployments[route.Key{Namespace: namespace, Name: name}] = true
		default:
			a.names[m] = true
		}
	}
	return a
}

// NewToken returns a new token for the key called name. It cannot be recovered from the
// Secret.
func NewToken(name string) string { return prefix + name + "_" + rand.Text() }

// Bearer returns the key in the headers of a request: Authorization, as OpenAI's clients
// send it, or else x-api-key, as Anthropic's do. It is empty if there is none, or more than
// one.
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

// nameIn returns the name of the Secret that a token claims to belong to.
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
