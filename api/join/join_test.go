//go:build !race

package join

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"
)

// csr is short for what tables below change.
type csr = x509.CertificateRequest

// bundle is a CA's certificate in PEM.
func bundle(t *testing.T) []byte {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func token(t *testing.T) Token {
	return Token{Server: "https://10.0.0.1:6443", CA: append(bundle(t), bundle(t)...), Namespace: "metalfleet-system", Mac: "studio",
		Credential: strings.Repeat("header.claims.signature", 40), Expires: time.Unix(1_800_000_000, 0)}
}

func TestATokenIsReadAsItWasPrinted(t *testing.T) {
	want := token(t)
	text, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	var wrapped strings.Builder
	for i, r := range text {
		if i > 0 && i%80 == 0 {
			wrapped.WriteString(" \r\n")
		}
		wrapped.WriteRune(r)
	}
	for name, s := range map[string]string{"as printed": text, "with its line end": text + "\n", "wrapped by a terminal": wrapped.String()} {
		got, err := Parse(s)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) || string(got.CA) != string(want.CA) || got.Credential != want.Credential {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if plain := fmt.Sprintf("%v %+v %#v %s", want, want, want, want); strings.Contains(plain, want.Credential) {
		t.Errorf("a format shows the secret: %s", plain)
	}
}

func TestATokenThatSufferedOnItsWayIsRefused(t *testing.T) {
	text, err := token(t).Encode()
	if err != nil {
		t.Fatal(err)
	}
	changed := []byte(text)
	changed[len(changed)/2] ^= 1
	for name, tc := range map[string]struct {
		text string
		want error
	}{
		"cut off in the middle":     {text[:len(text)/2], errDamaged},
		"cut off by one":            {text[:len(text)-1], errDamaged},
		"without its checksum":      {text[:strings.LastIndex(text, ".")], errDamaged},
		"without its middle":        {text[:300] + text[400:], errDamaged},
		"changed by one character":  {string(changed), errDamaged},
		"without its beginning":     {text[20:], errNoToken},
		"of a later form":           {strings.Replace(text, "-v1.", "-v2.", 1), errVersion},
		"nothing":                   {"", errNoToken},
		"the Credential alone":      {token(t).Credential, errNoToken},
		"a file that is much else":  {strings.Repeat("x", most+1), errNoToken},
		"only its prefix":           {prefix, errDamaged},
		"the prefix and no more of": {prefix + version, errDamaged},
	} {
		if got, err := Parse(tc.text); !errors.Is(err, tc.want) {
			t.Errorf("a token %s is read as %v, %v; want %v", name, got, err, tc.want)
		}
	}
}

func TestATokenThatSaysTooLittleIsNotMade(t *testing.T) {
	for want, change := range map[string]func(*Token){
		"not the URL":             func(o *Token) { o.Server = "http://10.0.0.1" },
		"valid MacNode name":      func(o *Token) { o.Mac = "Studio_1" },
		"not a valid namespace":   func(o *Token) { o.Namespace = "" },
		"no credential":           func(o *Token) { o.Credential = "" },
		"no expiry time":          func(o *Token) { o.Expires = time.Time{} },
		"other than certificates": func(o *Token) { o.CA = []byte("-----BEGIN") },
	} {
		o := token(t)
		change(&o)
		if _, err := o.Encode(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// request signs a request of any content.
func request(t *testing.T, r x509.CertificateRequest, key any) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &r, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: requestType, Bytes: der})
}

func TestARequestAsksForOneMacAlone(t *testing.T) {
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	good, err := NewRequest("mac-a", key)
	if err != nil {
		t.Fatal(err)
	}
	if pub, err := CheckRequest(good, "mac-a"); err != nil || !pub.Equal(key.Public()) {
		t.Fatalf("its own: %v", err)
	}
	if err := badRequests(t, key, good); err != nil {
		t.Error(err)
	}
}

// badRequests are all refused for mac-a.
func badRequests(t *testing.T, key *ecdsa.PrivateKey, good []byte) error {
	base := func(change func(*x509.CertificateRequest)) []byte {
		r := x509.CertificateRequest{Subject: subject("mac-a"), DNSNames: []string{"mac-a.mac.metalfleet.dev"}}
		change(&r)
		return request(t, r, key)
	}
	_, small, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	large, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	plain := x509.CertificateRequest{Subject: subject("mac-a"), DNSNames: []string{"mac-a.mac.metalfleet.dev"}}
	block, _ := pem.Decode(good)
	broken := append([]byte(nil), block.Bytes...)
	broken[len(broken)-1] ^= 1
	ca, err := asn1.Marshal(struct{ IsCA bool }{IsCA: true})
	if err != nil {
		t.Fatal(err)
	}
	var errs []error
	for name, tc := range map[string]struct {
		request []byte
		want    string
	}{
		"another Mac's subject":  {request: base(func(r *csr) { r.Subject.CommonName = "mac-b" }), want: "its subject"},
		"a longer name's":        {request: base(func(r *csr) { r.Subject.CommonName = "mac-ab" }), want: "its subject"},
		"a shorter name's":       {request: base(func(r *csr) { r.Subject.CommonName = "mac-" }), want: "its subject"},
		"a group of Kubernetes":  {request: base(func(r *csr) { r.Subject.Organization = []string{"system:masters"} }), want: "its subject"},
		"one organization more":  {request: base(func(r *csr) { r.Subject.Organization = []string{Organization, "system:masters"} }), want: "its subject"},
		"a unit more":            {request: base(func(r *csr) { r.Subject.OrganizationalUnit = []string{"x"} }), want: "its subject"},
		"another Mac's DNS name": {request: base(func(r *csr) { r.DNSNames = []string{"mac-b.mac.metalfleet.dev"} }), want: "its names"},
		"one DNS name more":      {request: base(func(r *csr) { r.DNSNames = append(r.DNSNames, "gateway.metalfleet.dev") }), want: "its names"},
		"no DNS name":            {request: base(func(r *csr) { r.DNSNames = nil }), want: "its names"},
		"an address":             {request: base(func(r *csr) { r.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }), want: "its names"},
		"a mail address":         {request: base(func(r *csr) { r.EmailAddresses = []string{"a@b.c"} }), want: "its names"},
		"a URI":                  {request: base(func(r *csr) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }), want: "its names"},
		"to be an authority": {request: base(func(r *csr) {
			r.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: ca}}
		}), want: "more than a name"},
		"another kind of key":       {request: request(t, plain, small), want: "its key"},
		"another curve":             {request: request(t, plain, large), want: "its key"},
		"with a signature broken":   {request: pem.EncodeToMemory(&pem.Block{Type: requestType, Bytes: broken}), want: "signed with its own key"},
		"two of them":               {request: append(append([]byte(nil), good...), good...), want: "not one PEM block"},
		"a certificate":             {request: bundle(t), want: "not one PEM block"},
		"nothing that can be read":  {request: pem.EncodeToMemory(&pem.Block{Type: requestType, Bytes: []byte("x")}), want: "cannot be read"},
		"nothing at all (an empty)": {want: "not one PEM block"},
	} {
		if _, err := CheckRequest(tc.request, "mac-a"); err == nil || !strings.Contains(err.Error(), tc.want) {
			errs = append(errs, fmt.Errorf("a request for %s: %v, want %q", name, err, tc.want))
		}
	}
	return errors.Join(errs...)
}

func TestAnEnvelopeOpensForItsKeyAndRequestAlone(t *testing.T) {
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	want := Access{Token: "secret", Expires: time.Unix(7, 0).UTC()}
	sealed, err := Seal(&key.PublicKey, "uid-1", want)
	if err != nil || strings.Contains(string(sealed), "secret") {
		t.Fatalf("%q, %v", sealed, err)
	}
	if got, err := Open(key, "uid-1", sealed); err != nil || got != want {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := Open(other, "uid-1", sealed); !errors.Is(err, errSealed) {
		t.Errorf("another key: %v", err)
	}
	if _, err := Open(key, "uid-2", sealed); !errors.Is(err, errSealed) {
		t.Errorf("another request: %v", err)
	}
	sealed[len(sealed)-1] ^= 1
	if _, err := Open(key, "uid-1", sealed); !errors.Is(err, errSealed) {
		t.Errorf("changed: %v", err)
	}
}
