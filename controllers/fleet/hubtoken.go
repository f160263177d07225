package fleet

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Schemes of sources that may need a credential of a user's Secret.
const (
	// hubScheme is the prefix of sources on a model hub.
	hubScheme = "hf://"
	// bucketScheme is the prefix of sources in a bucket.
	bucketScheme = "s3://"
	// registryScheme is the prefix of sources in a registry.
	registryScheme = "oci://"
)

// Keys of a user's Secret: a hub token, and the environment variables of S3 tools.
const (
	tokenKey   = "token"
	keyID      = "AWS_ACCESS_KEY_ID"
	keySecret  = "AWS_SECRET_ACCESS_KEY"
	keySession = "AWS_SESSION_TOKEN"

	keyEndpoint = "AWS_ENDPOINT_URL"
)

// maxTokenBytes is far more than any hub token has, and maxKeyBytes than any part of an
// access key.
const (
	maxTokenBytes = 1024
	maxKeyBytes   = 4096
	// maxCredentialBytes bounds a credential as it is written. A Mac's Secret, of at most 1
	// MiB, has one for each assignment and inspection, of which there are at most 128.
	maxCredentialBytes = 6 << 10
	// maxLoginsBytes bounds the list of logins of a Secret, which takes twenty times its size while
	// it is parsed, every few seconds.
	maxLoginsBytes = 64 << 10
)

// TokenRef names the credential for a deployment's source; empty if it needs none. A Secret that
// is made again under the same name has another UID, and nothing that was verified with the
// earlier one counts. The reference reveals neither namespace nor Secret to the Mac that uses
// it, and cannot be made to collide with another: it is a whole SHA-256. Each kind of source
// has a reference of its own.
func TokenRef(d *v1alpha1.ModelDeployment) string {
	return TokenRefFor(d, d.Spec.Model.Resolved().Source)
}

// TokenRefFor is TokenRef for a replica's source, which may be an earlier one of the
// deployment.
func TokenRefFor(d *v1alpha1.ModelDeployment, source string) string {
	ref, uid := d.Spec.Model.SecretRef, d.Status.SecretUID
	switch {
	case ref == nil:
		return ""
	case strings.HasPrefix(source, hubScheme):
		return wholeDigest(d.Namespace, ref.Name, uid)
	case strings.HasPrefix(source, bucketScheme):
		return wholeDigest(d.Namespace, ref.Name, uid, bucketScheme, endpointOf(source))
	case strings.HasPrefix(source, registryScheme):
		return wholeDigest(d.Namespace, ref.Name, uid, registryScheme, registryOf(source))
	}
	return ""
}

// TokenRefs returns those in a Mac's assignments and inspections, sorted.
func TokenRefs(assigned *v1alpha1.MacAssignment) []string {
	refs := map[string]bool{}
	for _, a := range assigned.Spec.Assignments {
		refs[a.TokenRef] = true
	}
	for _, i := range assigned.Spec.Inspections {
		refs[i.TokenRef] = true
	}
	delete(refs, "")
	return slices.Sorted(maps.Keys(refs))
}

// wholeDigest is Digest without truncation.
func wholeDigest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Credential extracts the credential for a source from a user's Secret, or returns why it
// is missing. The Secret must have the type Opaque: a Secret of another type may hold
// something else under that key, such as a service account token, which must not leave the
// cluster.
func Credential(s *corev1.Secret, source string) ([]byte, *Refusal) {
	out, refusal := extracted(s, source)
	if len(out) > maxCredentialBytes {
		return invalid(s, "contains a credential of %d bytes, escaped as in a query; want at most %d", len(out), maxCredentialBytes)
	}
	return out, refusal
}

// extracted is Credential without a bound of its size.
func extracted(s *corev1.Secret, source string) ([]byte, *Refusal) {
	if strings.HasPrefix(source, registryScheme) {
		return login(s, source)
	}
	if s.Type != corev1.SecretTypeOpaque && s.Type != "" {
		return invalid(s, "is of type %s; credentials for a model source need type %s: %s", s.Type, corev1.SecretTypeOpaque, makeSecret(s.Namespace, s.Name, source))
	}
	if strings.HasPrefix(source, bucketScheme) {
		return accessKey(s, source)
	}
	raw, ok := s.Data[tokenKey]
	if !ok {
		return invalid(s, "has no key %q; store the Hugging Face token there: %s", tokenKey, makeSecret(s.Namespace, s.Name, source))
	}
	token, ok := oneLine(raw, maxTokenBytes)
	if !ok || strings.Contains(token, ":") {
		return invalid(s, "contains no valid token under key %q: want one line of at most %d printable characters without spaces and colons", tokenKey, maxTokenBytes)
	}
	return []byte(token), nil
}

// accessKey encodes an S3 key: "s3:ID:SECRET", followed by ":SESSION" if there is a session
// token, each part escaped as in a query. If the Secret names an endpoint, it is for sources there
// alone: another server could use a request's signature at that endpoint, if that takes any Host.
func accessKey(s *corev1.Secret, source string) ([]byte, *Refusal) {
	if raw, ok := s.Data[keyEndpoint]; ok {
		want, valid := hostOf(strings.TrimSpace(string(raw)))
		if !valid || endpointOf(source) != want {
			return invalid(s, "names an https:// endpoint under key %q that is not the source's; correct ?endpoint= of the source, or that key", keyEndpoint)
		}
	}
	out := v1alpha1.CredentialS3
	for i, key := range []string{keyID, keySecret, keySession} {
		raw, ok := s.Data[key]
		if !ok && key == keySession {
			break
		}
		if !ok {
			return invalid(s, "has no key %q, which an s3:// source needs; store the access key there: %s", key, makeSecret(s.Namespace, s.Name, source))
		}
		part, ok := oneLine(raw, maxKeyBytes)
		if !ok {
			return invalid(s, "contains no valid access key under key %q: want one line of at most %d printable characters without spaces", key, maxKeyBytes)
		}
		if i > 0 {
			out += ":"
		}
		out += url.QueryEscape(part)
	}
	return []byte(out), nil
}

// endpointOf returns the host and port of the endpoint that a bucket source names; empty if it
// names none.
func endpointOf(source string) string {
	_, query, _ := strings.Cut(source, "?")
	params, _ := url.ParseQuery(query)
	host, _ := hostOf(params.Get("endpoint"))
	return host
}

// hostOf returns the host and port of an https:// endpoint.
func hostOf(endpoint string) (string, bool) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return "", false
	}
	return strings.TrimSuffix(strings.ToLower(u.Host), ":443"), true
}

// registryOf returns the host of a registry source.
func registryOf(source string) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(source, registryScheme), "/")
	return host
}

// CredentialKind returns the part of a source that decides which part of a Secret is read
// for it.
func CredentialKind(source string) string {
	if strings.HasPrefix(source, registryScheme) {
		return registryScheme + registryOf(source)
	}
	scheme, _, _ := strings.Cut(source, ":")
	if scheme == "s3" {
		return bucketScheme + endpointOf(source)
	}
	return scheme
}

// login encodes the login for the source's registry from a Secret that `kubectl create
// secret docker-registry` creates: "oci:NAME:PASSWORD", each part escaped as in a query.
// Logins for other registries are not used.
func login(s *corev1.Secret, source string) ([]byte, *Refusal) {
	host := registryOf(source)
	if s.Type != corev1.SecretTypeDockerConfigJson {
		return invalid(s, "is of type %q; credentials for a registry need type %s: %s", s.Type, corev1.SecretTypeDockerConfigJson, makeSecret(s.Namespace, s.Name, source))
	}
	if n := len(s.Data[corev1.DockerConfigJsonKey]); n > maxLoginsBytes {
		return invalid(s, "contains logins of %d bytes, at most %d are allowed; create one for this registry alone: %s", n, maxLoginsBytes, makeSecret(s.Namespace, s.Name, source))
	}
	var config struct {
		Auths map[string]struct {
			Username string `json:"username"`
			Password string `json:"password"`
			Auth     string `json:"auth"`
		} `json:"auths"`
	}
	if err := json.Unmarshal(s.Data[corev1.DockerConfigJsonKey], &config); err != nil {
		return invalid(s, "contains no valid JSON under key %q; create it again: %s", corev1.DockerConfigJsonKey, makeSecret(s.Namespace, s.Name, source))
	}
	for _, key := range []string{host, "https://" + host, "https://" + host + "/v1/", "https://" + host + "/v2/", "https://index." + host + "/v1/"} {
		auth, ok := config.Auths[key]
		if !ok {
			continue
		}
		if raw, err := base64.StdEncoding.DecodeString(auth.Auth); err == nil && auth.Username == "" {
			auth.Username, auth.Password, _ = strings.Cut(string(raw), ":")
		}
		name, ok := oneLine([]byte(auth.Username), maxKeyBytes)
		password, also := oneLine([]byte(auth.Password), maxKeyBytes)
		if !ok || !also {
			return invalid(s, "contains no valid name and password for registry %s; create it again: %s", host, makeSecret(s.Namespace, s.Name, source))
		}
		return []byte(v1alpha1.CredentialOCI + url.QueryEscape(name) + ":" + url.QueryEscape(password)), nil
	}
	return invalid(s, "contains no login for registry %s; add it: %s", host, makeSecret(s.Namespace, s.Name, source))
}

// oneLine accepts one line of printable characters without blanks.
func oneLine(raw []byte, most int) (string, bool) {
	text := strings.TrimRight(string(raw), "\r\n")
	odd := func(r rune) bool { return r <= ' ' || r > '~' }
	return text, text != "" && len(text) <= most && !strings.ContainsFunc(text, odd)
}

func invalid(s *corev1.Secret, format string, args ...any) ([]byte, *Refusal) {
	return nil, &Refusal{v1alpha1.ReasonSecretInvalid, "Secret " + s.Namespace + "/" + s.Name + " " + fmt.Sprintf(format, args...)}
}

// NoSecret is the refusal for a missing Secret.
func NoSecret(namespace, name, source string) *Refusal {
	return &Refusal{v1alpha1.ReasonSecretNotFound,
		fmt.Sprintf("Secret %s/%s, which model.secretRef names, does not exist; create it: %s", namespace, name, makeSecret(namespace, name, source))}
}

// UnreadableSecret is the refusal for a Secret that the operator may not read.
func UnreadableSecret(namespace, name string) *Refusal {
	return &Refusal{v1alpha1.ReasonSecretForbidden,
		fmt.Sprintf("the operator is not allowed to read Secret %s/%s, which model.secretRef names; an administrator allows it with `kubectl create rolebinding metalfleet-secrets -n %s --clusterrole=metalfleet-secret-reader --serviceaccount=metalfleet-system:metalfleet-operator`, or with operator.secretNamespaces in the values of the chart", namespace, name, namespace)}
}

func makeSecret(namespace, name, source string) string {
	if strings.HasPrefix(source, registryScheme) {
		return fmt.Sprintf("`kubectl create secret docker-registry %s -n %s --docker-server=%s --docker-username=NAME --docker-password=PASSWORD`", name, namespace, registryOf(source))
	}
	from := "--from-file=" + tokenKey + "=FILE"
	if strings.HasPrefix(source, bucketScheme) {
		from = "--from-file=" + keyID + "=FILE --from-file=" + keySecret + "=FILE"
	}
	return fmt.Sprintf("`kubectl create secret generic %s -n %s %s`", name, namespace, from)
}
