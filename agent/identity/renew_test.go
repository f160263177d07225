package identity

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// lasting is a certificate of m1 that is good from now on for d.
func (a authority) lasting(t *testing.T, d time.Duration) material {
	t.Helper()
	return a.between(t, time.Now(), time.Now().Add(d))
}

// between is a certificate of m1 that is good for a time.
func (a authority) between(t *testing.T, from, until time.Time) material {
	t.Helper()
	name := agentapi.MacServerName("m1")
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, KeyUsage: x509.KeyUsageDigitalSignature}
	cert, key, _ := signBetween(t, template, a.cert, a.key, from, until)
	return material{Certificate: cert, Key: key, Authority: a.pem}
}

// renewals runs the loop for a time; renew receives the number of the attempt.
func renewals(t *testing.T, i *Identity, d time.Duration, renew func(int) error) (at []time.Duration) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	i.renewLoop(ctx, func(context.Context) error {
		at = append(at, time.Since(began))
		return renew(len(at))
	})
	return at
}

func TestACertificateIsRenewedAt70Percent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		i := open(t, t.TempDir())
		i.learn(a.pem)
		took := func(int) error { return i.take(a.lasting(t, 24*time.Hour)) }
		at := renewals(t, i, 3*24*time.Hour, took)
		if len(at) != 5 || at[0] != 0 {
			t.Fatalf("certificates after %v, want one at once and 5 in three days", at)
		}
		for k := range at[1:] {
			if gap := at[k+1] - at[k]; gap < 16*time.Hour || gap > 17*time.Hour {
				t.Errorf("%s between two certificates that are good for a day", gap)
			}
		}
	})
}

func TestAnOldCertificateFromTheDiskIsRenewedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, dir := newAuthority(t), t.TempDir()
		if err := open(t, dir).take(a.lasting(t, 24*time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Hour) // the Mac was off past expiry
		i := open(t, dir)
		if !i.Known() {
			t.Error("an expired certificate is not even shown")
		}
		at := renewals(t, i, time.Hour, func(int) error { return i.take(a.lasting(t, 24*time.Hour)) })
		if len(at) != 1 || at[0] != 0 {
			t.Errorf("certificates after %v, want one at once", at)
		}
	})
}

func TestAClockFarAheadDoesNotAskWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		i := open(t, t.TempDir())
		i.learn(a.pem)
		at := renewals(t, i, 24*time.Hour, func(int) error {
			m := a.lasting(t, 24*time.Hour)
			err := i.take(m)
			c := *i.current.Load()
			leaf := *c.leaf
			leaf.NotBefore, leaf.NotAfter = leaf.NotBefore.AddDate(-1, 0, 0), leaf.NotAfter.AddDate(-1, 0, 0)
			c.leaf = &leaf
			i.current.Store(&c)
			return err
		})
		if len(at) < 5 || len(at) > 11 {
			t.Errorf("%d certificates in a day: %v", len(at), at)
		}
	})
}

// TestACertificateOfAClockAheadIsReplaced: gateways refuse one that is not valid yet, which an operator
// signed whose clock was a month ahead. Meanwhile that is right again.
func TestACertificateOfAClockAheadIsReplaced(t *testing.T) {
	for name, restarted := range map[string]bool{"in the same start": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, dir := newAuthority(t), t.TempDir()
				i := open(t, dir)
				i.learn(a.pem)
				month := time.Now().AddDate(0, 1, 0)
				if err := i.take(a.between(t, month, month.Add(24*time.Hour))); err != nil {
					t.Fatal(err)
				}
				if restarted {
					i = open(t, dir)
				}
				at := renewals(t, i, 24*time.Hour, func(int) error { return i.take(a.lasting(t, 24*time.Hour)) })
				if len(at) != 2 || at[0] > look {
					t.Errorf("certificates after %v, want one within %s and another before the end of a day", at, look)
				}
			})
		})
	}
}

// TestASlowClockDoesNotAskWithoutEnd: by it no certificate is valid yet.
func TestASlowClockDoesNotAskWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		i := open(t, t.TempDir())
		i.learn(a.pem)
		at := renewals(t, i, 24*time.Hour, func(int) error {
			month := time.Now().AddDate(0, 1, 0)
			return i.take(a.between(t, month, month.Add(24*time.Hour)))
		})
		if most := int(24*time.Hour/look) + 1; len(at) > most {
			t.Errorf("%d certificates in a day, want at most %d", len(at), most)
		}
	})
}

func TestWithoutAnAuthorityNothingIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := open(t, t.TempDir())
		if at := renewals(t, i, time.Hour, func(int) error { return nil }); len(at) != 0 {
			t.Errorf("asked after %v", at)
		}
	})
}

func TestFailuresAreWaitedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		i := open(t, t.TempDir())
		i.learn(a.pem)
		<-i.wakes
		at := renewals(t, i, time.Hour, func(n int) error {
			if n < 12 {
				return errors.New("the operator is away")
			}
			return i.take(a.lasting(t, 24*time.Hour))
		})
		if len(at) != 12 || at[1] != time.Second || at[11]-at[10] != 5*time.Minute {
			t.Errorf("asked after %v", at)
		}
	})
}

// TestANewAuthorityBringsANewCertificate: until then the old pair serves.
func TestANewAuthorityBringsANewCertificate(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	i := open(t, t.TempDir())
	if err := i.take(a.mac(t, "m1")); err != nil {
		t.Fatal(err)
	}
	both := append(append([]byte(nil), a.pem...), b.pem...)
	i.learn(both) // the certificate is of one of them
	if got := i.current.Load().material.Authority; string(got) != string(both) {
		t.Error("a bundle with the old authority is not taken at once")
	}
	if i.due(time.Now()) == 0 {
		t.Error("a certificate of one of two trusted roots is replaced before its time")
	}
	i.learn([]byte("nothing"))
	i.learn(append(slices.Clone(b.pem), a.pem[:100]...))
	if got := i.current.Load().material.Authority; string(got) != string(both) {
		t.Error("roots that cannot all be read are taken")
	}
	i.learn(b.pem)
	if got := i.current.Load().material.Authority; string(got) != string(b.pem) || !i.Known() || i.due(time.Now()) != 0 {
		t.Error("the new root is not trusted at once, the old pair does not serve on, or nothing is asked for")
	}
	if err := i.take(b.mac(t, "m1")); err != nil || i.due(time.Now()) == 0 {
		t.Errorf("the new certificate: %v", err)
	}
}
