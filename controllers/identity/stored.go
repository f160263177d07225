package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/controllers/identity/rotation"
)

// Keys of the authority's Secret, in addition to tls.crt and tls.key of the signing root.
// SECURITY.md explains them to administrators.
const (
	keyIssuedUntil = "issued-until" // upper bound for the expiry of certificates of tls.crt
	keyNext        = "next.crt"     // the root that signs next, and its key
	keyNextKey     = "next.key"
	keySpreadSince = "spread-since" // when gateways had next.crt
	keyOld         = "old.crt"      // the root that signed before; its key is deleted
	keyOldUntil    = "old-until"    // upper bound for the expiry of certificates of old.crt
	keyHurry       = "hurry"        // "true": this rotation waits for no confirmation
	keyHandled     = "rotate-handled"
	keyHandledNow  = "rotate-at-once-handled"
	keyRevoked     = agentapi.KeyRevoked // deleted MacNodes, for all Macs
)

// Annotations of the authority's Secret.
const (
	// AnnotationRotate begins a rotation with each new value.
	AnnotationRotate = "metalfleet.dev/rotate"
	// AnnotationRotateAtOnce begins one that waits for no confirmation.
	AnnotationRotateAtOnce = "metalfleet.dev/rotate-at-once"
	// AnnotationRotation is written by the operator: the step or condition that the
	// rotation is at.
	AnnotationRotation = "metalfleet.dev/rotation"
)

// parseAuthority parses the CA from its Secret. An inconsistent Secret is rejected as a
// whole: trusting or distrusting a root by mistake is worse than not signing.
func parseAuthority(s *corev1.Secret, now time.Time) (*authority, error) {
	a, err := readAuthority(s.Data, now)
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s %w (%w)", s.Namespace, s.Name, errNoAuthority, err)
	}
	return a, nil
}

func readAuthority(data map[string][]byte, now time.Time) (*authority, error) {
	cert, key, err := parsePair(data, corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	if err != nil {
		return nil, err
	}
	a := &authority{root: root{cert: cert, key: key}}
	a.state = rotation.State{Signing: rootOf(cert), Hurry: string(data[keyHurry]) == "true",
		Handled: string(data[keyHandled]), HandledAtOnce: string(data[keyHandledNow])}
	if a.state.IssuedUntil, err = timeIn(data, keyIssuedUntil); err != nil {
		return nil, err
	}
	if _, said := data[keyIssuedUntil]; !said {
		// Written by an old operator, which did not record it: assume the maximum.
		a.state.IssuedUntil = now.Add(LongestLife)
	}
	a.trusted, a.bundle = []*x509.Certificate{cert}, certificatePEM(cert.Raw)
	if err := errors.Join(a.readNext(data), a.readOld(data)); err != nil {
		return nil, err
	}
	if a.state.Next != nil && a.state.Old != nil {
		return nil, fmt.Errorf("it contains %s and %s, but only one rotation can run at a time", keyNext, keyOld)
	}
	if _, err := agentapi.ReadRevoked(data[keyRevoked]); err != nil {
		return nil, err
	}
	a.revoked = data[keyRevoked]
	for _, r := range a.trusted {
		if !r.IsCA {
			return nil, fmt.Errorf("the certificate of %s is not a CA's", r.Subject.CommonName)
		}
	}
	return a, nil
}

// readNext parses the root that signs next, if there is one.
func (a *authority) readNext(data map[string][]byte) (err error) {
	if len(data[keyNext])+len(data[keyNextKey]) == 0 {
		if len(data[keySpreadSince]) > 0 {
			return fmt.Errorf("it contains %s without %s", keySpreadSince, keyNext)
		}
		return nil
	}
	cert, _, err := parsePair(data, keyNext, keyNextKey)
	if err != nil {
		return err
	}
	next := rootOf(cert)
	a.state.Next = &next
	a.trusted, a.bundle = append(a.trusted, cert), append(a.bundle, certificatePEM(cert.Raw)...)
	a.state.SpreadSince, err = timeIn(data, keySpreadSince)
	return errors.Join(err, a.distinct(next))
}

// readOld parses the root that signed before, if it is still trusted.
func (a *authority) readOld(data map[string][]byte) error {
	if len(data[keyOld])+len(data[keyOldUntil]) == 0 {
		return nil
	}
	cert, err := parseCertificate(data, keyOld)
	if err != nil {
		return err
	}
	old := rootOf(cert)
	a.state.Old = &old
	a.trusted, a.bundle = slices.Insert(a.trusted, 0, cert), append(certificatePEM(cert.Raw), a.bundle...)
	if a.state.OldUntil, err = timeIn(data, keyOldUntil); err == nil && a.state.OldUntil.IsZero() {
		err = fmt.Errorf("it contains %s without %s", keyOld, keyOldUntil)
	}
	return errors.Join(err, a.distinct(old))
}

func (a *authority) distinct(other rotation.Root) error {
	if other.Fingerprint == a.state.Signing.Fingerprint {
		return errors.New("it contains the same root twice")
	}
	return nil
}

// rootOf returns the relevant part of a certificate.
func rootOf(c *x509.Certificate) rotation.Root {
	return rotation.Root{Fingerprint: agentapi.Fingerprint(c), NotAfter: c.NotAfter}
}

// timeIn parses a time; a missing key is the zero time.
func timeIn(data map[string][]byte, key string) (time.Time, error) {
	if _, ok := data[key]; !ok {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, string(data[key]))
	if err != nil {
		return time.Time{}, fmt.Errorf("%s is not a time: %w", key, err)
	}
	return t, nil
}

// stamp rounds up, so that no wait is cut short.
func stamp(t time.Time) []byte {
	return []byte(t.Add(time.Second - 1).UTC().Truncate(time.Second).Format(time.RFC3339))
}

// apply updates the data of the Secret for a step, in place.
func (a *authority) apply(data map[string][]byte, d rotation.Decision, w rotation.World, now time.Time) error {
	switch d.Step {
	case rotation.Begin:
		next, err := newRoot(now)
		if err != nil {
			return err
		}
		data[keyNext], data[keyNextKey] = next[corev1.TLSCertKey], next[corev1.TLSPrivateKeyKey]
		data[keyHandled], data[keyHandledNow] = []byte(w.Asked), []byte(w.AtOnce)
		delete(data, keySpreadSince)
		delete(data, keyHurry)
		if d.Hurry {
			data[keyHurry] = []byte("true")
		}
	case rotation.Spread:
		data[keySpreadSince] = stamp(now)
	case rotation.Respread:
		delete(data, keySpreadSince)
	case rotation.Sign:
		data[keyOld], data[keyOldUntil] = data[corev1.TLSCertKey], stamp(a.state.IssuedUntil)
		data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey] = data[keyNext], data[keyNextKey]
		data[keyIssuedUntil] = stamp(now)
		for _, key := range []string{keyNext, keyNextKey, keySpreadSince} {
			delete(data, key)
		}
	case rotation.End:
		for _, key := range []string{keyOld, keyOldUntil, keyHurry} {
			delete(data, key)
		}
	default:
		return fmt.Errorf("unknown step %q", d.Step)
	}
	return nil
}
