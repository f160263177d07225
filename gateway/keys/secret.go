package keys

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"metalfleet.dev/metalfleet/api/openai"
)

// Type of the Secrets that hold API keys; no other type is read.
const Type corev1.SecretType = "metalfleet.dev/api-key"

// Data keys of a Secret.
const (
	memberDigest          = "sha256"
	memberModels          = "models"
	memberModelNamespaces = "modelNamespaces"
	memberExpires         = "expires"
	memberRequests        = "requestsPerMinute"
	memberTokens          = "tokensPerMinute"
	memberPriority        = "priority"
	memberStrict          = "strictFields"
	memberTenant          = "tenant"
)

const (
	// never is the value of memberExpires for a key that does not expire.
	never = "never"
	// maxEntries bounds each list in a Secret.
	maxEntries = 256
	// maxPerMinute bounds both limits.
	maxPerMinute = 1_000_000_000
)

// errInvalid means that a Secret holds no valid API key. The wrapped message names the data
// key and never its value: it may hold a key by mistake.
var errInvalid = errors.New("not an API key")

func invalid(member, format string, args ...any) error {
	return fmt.Errorf("%w: %s "+format, append([]any{errInvalid, member}, args...)...)
}

// parse reads a Secret. Its error wraps errInvalid.
func parse(s *corev1.Secret) (*Key, error) {
	if s.Type != Type {
		return nil, fmt.Errorf("%w: its type is not %s", errInvalid, Type)
	}
	if err := checkName(s.Name); err != nil {
		return nil, err
	}
	k := &Key{Name: s.Name, uid: string(s.UID)}
	digest, err := hex.DecodeString(string(s.Data[memberDigest]))
	if err != nil || copy(k.digest[:], digest) != sha256.Size || len(digest) != sha256.Size {
		return nil, invalid(memberDigest, "must be the SHA-256 of the key, as 64 hex digits")
	}
	for member, value := range s.Data {
		if err := k.read(member, string(value)); err != nil {
			return nil, err
		}
	}
	if s.Data[memberExpires] == nil {
		return nil, invalid(memberExpires, "is missing: write a time such as 2030-01-31T00:00:00Z, or %s", never)
	}
	k.access = k.Grant.access()
	return k, k.Check()
}

// read parses one data key of a Secret.
func (k *Key) read(member, value string) (err error) {
	switch member {
	case memberDigest:
	case memberModels:
		k.Models = list(value)
	case memberModelNamespaces:
		k.ModelNamespaces = list(value)
	case memberExpires:
		k.Expires, err = expiry(strings.TrimSpace(value))
	case memberRequests:
		k.RequestsPerMinute, err = perMinute(member, value)
	case memberTokens:
		k.TokensPerMinute, err = perMinute(member, value)
	case memberPriority:
		if k.Priority, err = strconv.ParseInt(strings.TrimSpace(value), 10, 64); err != nil {
			err = invalid(member, "must be a whole number from %d to %d; lower values are served first", -openai.MostPriority, openai.MostPriority)
		}
	case memberStrict:
		if k.StrictFields, err = strconv.ParseBool(strings.TrimSpace(value)); err != nil {
			err = invalid(member, "must be true or false")
		}
	case memberTenant:
		k.Tenant = strings.TrimSpace(value)
		if k.Tenant == "" {
			err = invalid(member, "must not be empty; omit it to make the key a tenant of its own")
		}
	default:
		err = invalid(member, "is unknown; check its spelling or remove it")
	}
	return err
}

// list splits a value at commas, spaces and line ends.
func list(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) })
}

func expiry(value string) (time.Time, error) {
	if value == never {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, value)
	if err != nil || at.IsZero() {
		return time.Time{}, invalid(memberExpires, "must be a time such as 2030-01-31T00:00:00Z, or %s", never)
	}
	return at, nil
}

func perMinute(member, value string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
	if err != nil || n < 1 {
		return 0, invalid(member, "must be a whole number of at least 1; omit it for no limit")
	}
	return n, nil
}

func checkName(name string) error {
	if len(name) > maxName || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("%w: its name must consist of lower-case letters, digits, dots and dashes, at most %d characters", errInvalid, maxName)
	}
	return nil
}

// servedName matches the names that a deployment may be served as.
var servedName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._:-]{0,126}[A-Za-z0-9])?(/[A-Za-z0-9]([A-Za-z0-9._:-]{0,126}[A-Za-z0-9])?)?$`)

// Check rejects a grant with invalid values.
func (g *Grant) Check() error {
	if len(g.Models)+len(g.ModelNamespaces) == 0 {
		return invalid(memberModels, "and %s are both missing: list what the key may use, or write %q", memberModelNamespaces, everyModel)
	}
	if len(g.Models) > maxEntries || len(g.ModelNamespaces) > maxEntries {
		return invalid(memberModels, "and %s may have at most %d entries each", memberModelNamespaces, maxEntries)
	}
	for i, m := range g.Models {
		if !isModel(m) {
			return invalid(memberModels, "entry %d is neither a served name nor NAMESPACE/NAME nor %q", i+1, everyModel)
		}
	}
	for i, n := range g.ModelNamespaces {
		if len(validation.IsDNS1123Label(n)) > 0 {
			return invalid(memberModelNamespaces, "entry %d is not a valid namespace name", i+1)
		}
	}
	for member, n := range map[string]int64{memberRequests: g.RequestsPerMinute, memberTokens: g.TokensPerMinute} {
		if n < 0 || n > maxPerMinute {
			return invalid(member, "must be from 1 to %d", maxPerMinute)
		}
	}
	if g.Tenant != "" && len(validation.IsDNS1123Label(g.Tenant)) > 0 {
		return invalid(memberTenant, "must consist of lower-case letters, digits and dashes, at most 63 characters")
	}
	if g.Priority < -openai.MostPriority || g.Priority > openai.MostPriority {
		return invalid(memberPriority, "must be from %d to %d", -openai.MostPriority, openai.MostPriority)
	}
	return nil
}

func isModel(m string) bool {
	return m == everyModel || isFullName(m) || servedName.MatchString(m)
}

// isFullName reports whether an entry can be NAMESPACE/NAME of a deployment.
func isFullName(m string) bool {
	namespace, name, slash := strings.Cut(m, "/")
	return slash && len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(name)) == 0
}

// NewSecret returns the Secret of a new key, which holds only its digest, and the token for
// the key's holder.
func NewSecret(namespace, name string, g Grant) (s *corev1.Secret, token string, err error) {
	if err := errors.Join(checkName(name), g.Check()); err != nil {
		return nil, "", err
	}
	token = NewToken(name)
	digest := sha256.Sum256([]byte(token))
	data := map[string]string{memberDigest: hex.EncodeToString(digest[:]), memberExpires: g.end()}
	for member, values := range map[string][]string{memberModels: g.Models, memberModelNamespaces: g.ModelNamespaces} {
		if len(values) > 0 {
			data[member] = strings.Join(values, ",")
		}
	}
	for member, n := range map[string]int64{memberRequests: g.RequestsPerMinute, memberTokens: g.TokensPerMinute} {
		if n > 0 {
			data[member] = strconv.FormatInt(n, 10)
		}
	}
	if g.Priority != 0 {
		data[memberPriority] = strconv.FormatInt(g.Priority, 10)
	}
	if g.Tenant != "" {
		data[memberTenant] = g.Tenant
	}
	if g.StrictFields {
		data[memberStrict] = "true"
	}
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app.kubernetes.io/part-of": "metalfleet"}},
		Type:       Type, StringData: data,
	}, token, nil
}

// end formats the expiry for the Secret.
func (g *Grant) end() string {
	if g.Expires.IsZero() {
		return never
	}
	return g.Expires.UTC().Format(time.RFC3339)
}

// same reports whether two grants allow the same.
func (g *Grant) same(o *Grant) bool {
	return slices.Equal(g.Models, o.Models) && slices.Equal(g.ModelNamespaces, o.ModelNamespaces) && g.Expires.Equal(o.Expires) && g.Priority == o.Priority && g.StrictFields == o.StrictFields && g.Tenant == o.Tenant && g.sameLimits(o)
}

func (g *Grant) sameLimits(o *Grant) bool {
	return g.RequestsPerMinute == o.RequestsPerMinute && g.TokensPerMinute == o.TokensPerMinute
}
