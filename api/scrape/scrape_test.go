package scrape

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/intake"
)

func TestOnlyTheLoopbackInterfaceIsOpen(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:8080": true, "[::1]:8080": true, "localhost:1": true,
		":8080": false, "0.0.0.0:8080": false, "[::]:8080": false, "10.0.0.1:8080": false, "127.0.0.1": false, "": false,
	} {
		if got := Open(address); got != want {
			t.Errorf("%q is open: %v", address, got)
		}
	}
}

// played is a gate with a fake API server that decides by token.
type played struct {
	*Gate
	asked int
	now   time.Time
}

func play() *played {
	p := &played{now: time.Unix(0, 0)}
	p.Gate = newGate(func(_ context.Context, token string) (int, error) {
		p.asked++
		switch token {
		case "reader":
			return http.StatusOK, nil
		case "tenant":
			return http.StatusForbidden, nil
		case "away":
			return 0, errors.New("no API server")
		}
		return http.StatusUnauthorized, nil
	}, func() time.Time { return p.now }, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics") }))
	return p
}

func (p *played) get(authorization string) int {
	r := httptest.NewRequest(http.MethodGet, Path, nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	if (w.Body.String() == "metrics") != (w.Code == http.StatusOK) {
		return 0
	}
	return w.Code
}

func TestMetricsAreForAccountsThatMayReadThem(t *testing.T) {
	p := play()
	for authorization, want := range map[string]int{
		"": 401, "Bearer ": 401, "Basic reader": 401, "Bearer reader": 200, "Bearer tenant": 403, "Bearer stranger": 401, "Bearer away": 503,
	} {
		if got := p.get(authorization); got != want {
			t.Errorf("Authorization %q: %d, want %d", authorization, got, want)
		}
	}
}

func TestAnAnswerHoldsForAWhile(t *testing.T) {
	p := play()
	for _, step := range []struct {
		token string
		after time.Duration
		asked int
	}{
		{token: "reader", asked: 1}, {token: "reader", after: allowedFor - 1, asked: 1}, {token: "reader", after: 1, asked: 2},
		{token: "tenant", asked: 3}, {token: "tenant", after: refusedFor - 1, asked: 3}, {token: "tenant", after: 1, asked: 4},
		{token: "away", asked: 5}, {token: "away", asked: 6},
	} {
		p.now = p.now.Add(step.after)
		p.get("Bearer " + step.token)
		if p.asked != step.asked {
			t.Fatalf("after %s of %s: %d questions, want %d", step.after, step.token, p.asked, step.asked)
		}
	}
	for i := range 2 * maxAnswers {
		p.get(fmt.Sprintf("Bearer %d", i))
	}
	if n := len(p.answers); n > maxAnswers {
		t.Errorf("%d answers are remembered", n)
	}
}

// TestAttackAFloodOfTokens: unauthenticated clients reach the API server through this port
// only at a bounded rate.
func TestAttackAFloodOfTokens(t *testing.T) {
	hold, entered := make(chan struct{}), make(chan struct{})
	g := newGate(func(context.Context, string) (int, error) {
		entered <- struct{}{}
		<-hold
		return http.StatusUnauthorized, nil
	}, time.Now, http.NotFoundHandler())
	p := &played{Gate: g}
	ended := make(chan int)
	for i := range maxQuestions {
		go func() { ended <- p.get(fmt.Sprintf("Bearer %d", i)) }()
		<-entered
	}
	if got := p.get("Bearer more"); got != 503 {
		t.Errorf("one token more: %d, want 503", got)
	}
	close(hold)
	for range maxQuestions {
		if got := <-ended; got != 401 {
			t.Errorf("a token that was asked about: %d", got)
		}
	}
}

func TestOnALoopbackAddressNothingIsAsked(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	same, _, err := Serve(l, http.NotFoundHandler(), nil)
	if bounded, ok := same.(*intake.Listener); err != nil || !ok || bounded.Listener != l {
		t.Errorf("%v, %v", same, err)
	}
}

// Anyone who reaches the port may begin handshakes, each of which is signed: RSA takes about
// thirty times as long.
func TestHandshakesAreSignedFast(t *testing.T) {
	c, err := selfSigned()
	if err != nil {
		t.Fatal(err)
	}
	if _, fast := c.PrivateKey.(*ecdsa.PrivateKey); !fast {
		t.Errorf("the key is a %T", c.PrivateKey)
	}
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil || leaf.VerifyHostname("metalfleet-metrics") != nil || time.Until(leaf.NotAfter) < certificateLife-time.Hour {
		t.Errorf("the certificate is for %v until %v (%v)", leaf.DNSNames, leaf.NotAfter, err)
	}
}
