package join

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// EnrolmentSlots is the number of certificate requests that one enrolment token
// may have in the API server at a time. Their names are fixed, because RBAC can
// grant access by name only.
const EnrolmentSlots = 100

// MaxEnrolled bounds how many Macs one enrolment token may admit: each is recorded
// in its Secret.
const MaxEnrolled = 1000

// Keys of the Secret of an enrolment, in addition to KeyCredential and KeyExpires.
const (
	// KeyCount holds how many Macs may join, in decimal.
	KeyCount = "count"
	// KeyNames holds the pattern of their names.
	KeyNames = "names"
	// KeyApproval is present when a person has to approve each Mac.
	KeyApproval = "approval"
	// keyUse precedes the name of a Mac that joined.
	keyUse = "mac."
)

// ConditionAccess is the condition of an enrolment's certificate request whose
// message holds the Mac's first API token, sealed to the request's key, in base64.
const ConditionAccess = "Access"

// Reasons for the condition Denied or Failed of an enrolment's request.
const (
	ReasonEnrolmentEnded = "EnrolmentEnded" // the enrolment token expired or was revoked
	ReasonEnrolmentFull  = "EnrolmentFull"  // as many Macs as it admits have joined
	ReasonNameNotAllowed = "NameNotAllowed" // the name does not match the token's pattern
	ReasonNameTaken      = "NameTaken"      // another Mac has, or had, that name
)

// EnrolmentAccount returns the name of the ServiceAccount that an enrolment token
// authenticates as, and of the Secret that it is bound to.
func EnrolmentAccount(enrolment string) string { return "enrol-" + enrolment }

// EnrolmentRequest returns the name of the CertificateSigningRequest of a slot, which is
// at least 0 and less than EnrolmentSlots.
func EnrolmentRequest(enrolment string, slot int) string {
	return fmt.Sprintf("%s.%02d", RequestName(EnrolmentAccount(enrolment)), slot)
}

var requestOfEnrolment = regexp.MustCompile(`^metalfleet-enrol-([a-z0-9-]+)\.[0-9]{2}$`)

// CutEnrolmentRequest returns the enrolment in the name of a request.
func CutEnrolmentRequest(request string) (enrolment string, ok bool) {
	m := requestOfEnrolment.FindStringSubmatch(request)
	if m == nil || CheckEnrolment(m[1]) != nil {
		return "", false
	}
	return m[1], true
}

var (
	enrolmentName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)
	namePattern   = regexp.MustCompile(`^[a-z0-9*-]{1,52}$`)
)

// CheckEnrolment rejects a string that is not a valid name of an enrolment.
func CheckEnrolment(name string) error {
	if !enrolmentName.MatchString(name) {
		return fmt.Errorf("%q is not a valid name of an enrolment: want up to 40 lower-case letters, digits and '-', beginning and ending with a letter or digit", name)
	}
	return nil
}

// CheckNames rejects a string that is not a pattern of names.
func CheckNames(pattern string) error {
	if !namePattern.MatchString(pattern) {
		return fmt.Errorf("%q is not a pattern of MacNode names: want lower-case letters, digits, '-', and '*' for any number of them, such as lab-*", pattern)
	}
	return nil
}

// Fingerprint returns a short form of a public key, by which a person can compare it.
func Fingerprint(key *ecdsa.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("fingerprint of a key: %w", err)
	}
	sum := sha256.Sum256(der)
	return "SHA256:" + base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// Use is one Mac's use of an enrolment token.
type Use struct {
	// Key is the fingerprint of the Mac's key.
	Key string
	// Request is the UID of the request that the token was used for.
	Request string
}

// Enrolment is what the Secret of an enrolment token says.
type Enrolment struct {
	// Names is the pattern that the Macs' names have to match: '*' is any number of characters.
	Names string
	// Count is how many Macs may join.
	Count int
	// Approval means that a person approves the request of each Mac.
	Approval bool
	// Credential is the id of the only token that may be used; empty until there is one.
	Credential string
	// Expires is when the token expires; zero until there is one.
	Expires time.Time
	// Uses are the Macs that joined, by name.
	Uses map[string]Use
}

// Left returns how many more Macs may join.
func (e Enrolment) Left() int { return max(0, e.Count-len(e.Uses)) }

// Allows reports whether a Mac may have that name.
func (e Enrolment) Allows(mac string) bool {
	ok, err := path.Match(e.Names, mac)
	return ok && err == nil
}

// Check rejects an enrolment that is not bounded as intended.
func (e Enrolment) Check() error {
	if e.Count < 1 || e.Count > MaxEnrolled {
		return fmt.Errorf("an enrolment token can admit 1 to %d Macs, not %d", MaxEnrolled, e.Count)
	}
	return CheckNames(e.Names)
}

// Data returns the content of the Secret.
func (e Enrolment) Data() map[string][]byte {
	out := map[string][]byte{KeyNames: []byte(e.Names), KeyCount: []byte(strconv.Itoa(e.Count))}
	if e.Approval {
		out[KeyApproval] = []byte("required")
	}
	if e.Credential != "" {
		out[KeyCredential] = []byte(e.Credential)
		out[KeyExpires] = []byte(e.Expires.UTC().Format(time.RFC3339))
	}
	for mac, use := range e.Uses {
		out[keyUse+mac] = []byte(use.Key + " " + use.Request)
	}
	return out
}

// ReadEnrolment parses the content of the Secret.
func ReadEnrolment(data map[string][]byte) (Enrolment, error) {
	e := Enrolment{Names: string(data[KeyNames]), Credential: string(data[KeyCredential]), Uses: map[string]Use{}}
	_, e.Approval = data[KeyApproval]
	var err error
	if e.Count, err = strconv.Atoi(string(data[KeyCount])); err != nil {
		return Enrolment{}, fmt.Errorf("its %s is not a number: %w", KeyCount, err)
	}
	if err := e.Check(); err != nil {
		return Enrolment{}, err
	}
	if e.Credential != "" {
		if e.Expires, err = time.Parse(time.RFC3339, string(data[KeyExpires])); err != nil {
			return Enrolment{}, fmt.Errorf("its %s is not a time: %w", KeyExpires, err)
		}
	}
	for key := range maps.Keys(data) {
		mac, used := strings.CutPrefix(key, keyUse)
		if !used {
			continue
		}
		fingerprint, request, ok := strings.Cut(string(data[key]), " ")
		if !ok {
			return Enrolment{}, errors.New("it has a damaged record of Mac " + mac)
		}
		e.Uses[mac] = Use{Key: fingerprint, Request: request}
	}
	return e, nil
}

// EncodeAccess returns the message of ConditionAccess for what Seal returned.
func EncodeAccess(sealed []byte) string { return base64.StdEncoding.EncodeToString(sealed) }

// DecodeAccess is the reverse of EncodeAccess.
func DecodeAccess(message string) ([]byte, error) {
	sealed, err := base64.StdEncoding.DecodeString(message)
	if err != nil {
		return nil, errSealed
	}
	return sealed, nil
}
