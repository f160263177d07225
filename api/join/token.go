package join

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// Token is the join token that an administrator carries to a Mac, or the
// enrolment token that is given to many. It is a secret.
type Token struct {
	// Server is the https URL at which the Mac reaches the API server.
	Server string
	// CA holds the CA certificates of the API server, in PEM; when it is empty,
	// the Mac uses its own roots.
	CA []byte
	// Namespace is the namespace of the Mac's Lease, Secret and accounts.
	Namespace string
	// Mac is the name of the MacNode; empty in an enrolment token.
	Mac string
	// Enrolment is the name of the enrolment, in a token with which many Macs join;
	// otherwise empty.
	Enrolment string
	// Approval means that a person approves each Mac of the enrolment.
	Approval bool
	// Credential allows one certificate request, or, of an enrolment, one for each Mac.
	Credential string
	// Expires is when Credential expires.
	Expires time.Time
}

// Errors of Parse; each message names the next step.
var (
	errNoToken = errors.New("this is not a join token; copy the complete output of `kubectl metalfleet join-token`, starting with " + prefix)
	errVersion = errors.New("this agent does not support the format of this join token; upgrade the agent")
	errDamaged = errors.New("the join token is truncated or modified; copy the complete token again")
)

// A token has the form prefix + version + "." + base64url(deflate(JSON)) + "."
// + checksum.
const (
	prefix  = "metalfleet-join-"
	version = "v1"
	// most is much more than a token needs; it prevents reading a large
	// unrelated file.
	most = 64 << 10
)

// wire is the JSON inside.
type wire struct {
	Server     string   `json:"server"`
	CA         [][]byte `json:"ca,omitempty"` // DER
	Namespace  string   `json:"namespace"`
	Mac        string   `json:"mac,omitempty"`
	Enrolment  string   `json:"enrolment,omitempty"`
	Approval   bool     `json:"approval,omitempty"`
	Credential string   `json:"credential"`
	Expires    int64    `json:"expires"` // Unix seconds
}

// String describes a token without its secret.
func (t Token) String() string {
	if t.Enrolment != "" {
		return fmt.Sprintf("enrolment token %s for %s until %s", t.Enrolment, t.Server, t.Expires.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("join token of Mac %s for %s until %s", t.Mac, t.Server, t.Expires.UTC().Format(time.RFC3339))
}

// GoString is String, so that no format verb shows the secret.
func (t Token) GoString() string { return t.String() }

// Encode returns the printable form: one word of about 2,000 characters.
func (t Token) Encode() (string, error) {
	if err := t.check(); err != nil {
		return "", err
	}
	ca, err := decodePEM(t.CA)
	if err != nil {
		return "", err
	}
	raw, err := json.Marshal(wire{Server: t.Server, CA: ca, Namespace: t.Namespace, Mac: t.Mac, Enrolment: t.Enrolment, Approval: t.Approval, Credential: t.Credential, Expires: t.Expires.Unix()})
	if err != nil {
		return "", fmt.Errorf("encode join token: %w", err)
	}
	var packed bytes.Buffer
	w, err := flate.NewWriter(&packed, flate.BestCompression)
	if err == nil {
		_, err = w.Write(raw)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return "", fmt.Errorf("encode join token: %w", err)
	}
	body := prefix + version + "." + base64.RawURLEncoding.EncodeToString(packed.Bytes())
	return body + "." + checksum(body), nil
}

// Parse reads the printable form. It ignores white space, because terminals
// wrap lines.
func Parse(s string) (Token, error) {
	if len(s) > most {
		return Token{}, errNoToken
	}
	s = strings.Join(strings.Fields(s), "")
	rest, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return Token{}, errNoToken
	}
	parts := strings.Split(rest, ".")
	if len(parts) > 1 && parts[0] != version {
		return Token{}, errVersion
	}
	if len(parts) != 3 || checksum(strings.TrimSuffix(s, "."+parts[2])) != parts[2] {
		return Token{}, errDamaged
	}
	packed, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return Token{}, errDamaged
	}
	raw, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), 4*most))
	if err != nil {
		return Token{}, errDamaged
	}
	var w wire
	if err := json.Unmarshal(raw, &w); err != nil {
		return Token{}, errDamaged
	}
	t := Token{Server: w.Server, Namespace: w.Namespace, Mac: w.Mac, Enrolment: w.Enrolment, Approval: w.Approval, Credential: w.Credential, Expires: time.Unix(w.Expires, 0)}
	for _, der := range w.CA {
		t.CA = append(t.CA, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return t, t.check()
}

// checksum detects copying mistakes. It does not prevent forgery; the API
// server rejects a forged token.
func checksum(body string) string {
	sum := sha256.Sum256([]byte(body))
	return base64.RawURLEncoding.EncodeToString(sum[:6])
}

var (
	macName       = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?$`)
	namespaceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// CheckMac rejects a string that is not a valid MacNode name.
func CheckMac(name string) error {
	if !macName.MatchString(name) {
		return fmt.Errorf("%q is not a valid MacNode name: want up to 52 lower-case letters, digits and '-', beginning and ending with a letter or digit", name)
	}
	return nil
}

// check rejects a token that is incomplete or implausible.
func (t Token) check() error {
	u, err := url.Parse(t.Server)
	switch {
	case err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("join token: %q is not the URL of an API server; want https://HOST[:PORT]", t.Server)
	case !namespaceName.MatchString(t.Namespace):
		return fmt.Errorf("join token: %q is not a valid namespace", t.Namespace)
	case t.Credential == "" || strings.ContainsAny(t.Credential, " \r\n"):
		return errors.New("join token: it contains no credential")
	case t.Expires.Unix() <= 0:
		return errors.New("join token: it has no expiry time")
	}
	if err := t.checkName(); err != nil {
		return fmt.Errorf("join token: %w", err)
	}
	_, err = decodePEM(t.CA)
	return err
}

// checkName: a token is for one Mac or for one enrolment.
func (t Token) checkName() error {
	switch {
	case t.Enrolment == "":
		return CheckMac(t.Mac)
	case t.Mac != "":
		return errors.New("it is for both a Mac and an enrolment")
	}
	return CheckEnrolment(t.Enrolment)
}

// decodePEM parses the certificates of a bundle and rejects any other content.
func decodePEM(bundle []byte) ([][]byte, error) {
	var out [][]byte
	for rest := bytes.TrimSpace(bundle); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("join token: the API server's CA contains something other than certificates")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fmt.Errorf("join token: the API server's CA: %w", err)
		}
		out = append(out, block.Bytes)
	}
	return out, nil
}
