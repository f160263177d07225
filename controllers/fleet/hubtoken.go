package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// HubScheme begins sources that lie on a hub.
const HubScheme = "hf://"

// tokenKey is the key of a user's Secret that holds a hub token.
const tokenKey = "token"

// maxTokenBytes is far more than any hub's token has.
const maxTokenBytes = 1024

// TokenRef names the hub token that a deployment's source is read with; empty
// where it needs none. It says neither namespace nor Secret to the Mac that
// reads it, and nobody can choose names so that it becomes another's: it is a
// whole SHA-256.
func TokenRef(d *v1alpha1.ModelDeployment) string {
	m := d.Spec.Model
	if m.SecretRef == nil || !strings.HasPrefix(m.Source, HubScheme) {
		return ""
	}
	return wholeDigest(d.Namespace, m.SecretRef.Name)
}

// TokenRefs are those that a Mac's orders name, sorted.
func TokenRefs(mac *v1alpha1.MacNode) []string {
	refs := map[string]bool{}
	for _, a := range mac.Spec.Assignments {
		refs[a.TokenRef] = true
	}
	for _, i := range mac.Spec.Inspections {
		refs[i.TokenRef] = true
	}
	delete(refs, "")
	return slices.Sorted(maps.Keys(refs))
}

// wholeDigest is Digest uncut.
func wholeDigest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))
}

// HubToken reads the token out of a user's Secret, or says why there is none.
// A Secret of another type than Opaque holds something else under that key: a
// service account's token is good for the cluster, and no hub's business.
func HubToken(s *corev1.Secret) ([]byte, *Refusal) {
	name := s.Namespace + "/" + s.Name
	no := func(format string, args ...any) ([]byte, *Refusal) {
		return nil, &Refusal{v1alpha1.ReasonSecretInvalid, "Secret " + name + " " + fmt.Sprintf(format, args...)}
	}
	if s.Type != corev1.SecretTypeOpaque && s.Type != "" {
		return no("is of type %s; a hub token lies in one of type %s: %s", s.Type, corev1.SecretTypeOpaque, makeSecret(s.Namespace, s.Name))
	}
	raw, ok := s.Data[tokenKey]
	if !ok {
		return no("has no key %q; put the hub token there: %s", tokenKey, makeSecret(s.Namespace, s.Name))
	}
	token := strings.TrimRight(string(raw), "\r\n")
	odd := func(r rune) bool { return r <= ' ' || r > '~' }
	if token == "" || len(token) > maxTokenBytes || strings.ContainsFunc(token, odd) {
		return no("holds no token under key %q: want one line of at most %d printable characters without blanks", tokenKey, maxTokenBytes)
	}
	return []byte(token), nil
}

// NoSecret is the refusal for a Secret that is not there.
func NoSecret(namespace, name string) *Refusal {
	return &Refusal{v1alpha1.ReasonSecretNotFound,
		fmt.Sprintf("there is no Secret %s/%s, which model.secretRef names; make it: %s", namespace, name, makeSecret(namespace, name))}
}

// UnreadableSecret is the refusal for a Secret that the operator may not read.
func UnreadableSecret(namespace, name string) *Refusal {
	return &Refusal{v1alpha1.ReasonSecretForbidden,
		fmt.Sprintf("the operator may not read Secret %s/%s, which model.secretRef names; let its ServiceAccount get Secrets there (config/rbac/role.yaml, or a Role in that namespace)", namespace, name)}
}

func makeSecret(namespace, name string) string {
	return fmt.Sprintf("`kubectl create secret generic %s -n %s --from-file=%s=FILE`", name, namespace, tokenKey)
}
