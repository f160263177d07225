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
	"strings"
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

func (p *played) get(authorization string) int { return p.from("10.0.0.1:1", authorization) }

func (p *played) from(address, authorization string) int {
	r := httptest.NewRequest(http.MethodGet, Path, nil)
	r.RemoteAddr = address
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
// only at a bounded rate, and keep no address from it that showed a good token.
func TestAttackAFloodOfTokens(t *testing.T) {
	hold, entered := make(chan struct{}), make(chan struct{})
	now := time.Unix(0, 0)
	g := newGate(func(_ context.Context, token string) (int, error) {
		if strings.HasPrefix(token, "good") {
			return http.StatusOK, nil
		}
		entered <- struct{}{}
		<-hold
		return http.StatusUnauthorized, nil
	}, func() time.Time { return now }, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics") }))
	p := &played{Gate: g}
	if got := p.from("10.0.0.1:1", "Bearer good"); got != 200 {
		t.Fatalf("a good token: %d", got)
	}
	ended := make(chan int)
	for i := range maxQuestions {
		go func() { ended <- p.from(fmt.Sprintf("192.0.2.%d:1", i), fmt.Sprintf("Bearer %d", i)) }()
		<-entered
		if got := p.from(fmt.Sprintf("192.0.2.%d:2", i), "Bearer good of one that asks"); got != 503 {
			t.Errorf("an address that asks already: %d, want 503", got)
		}
	}
	if got := p.from("192.0.2.99:1", "Bearer more"); got != 503 {
		t.Errorf("one token more: %d, want 503", got)
	}
	now = now.Add(time.Hour) // its token is replaced
	if got := p.from("10.0.0.1:2", "Bearer good, a later one"); got != 200 {
		t.Errorf("a later token of an address that showed a good one: %d, want 200", got)
	}
	close(hold)
	for range maxQuestions {
		if got := <-ended; got != 401 {
			t.Errorf("a token that was asked about: %d", got)
		}
	}
	if len(g.asking) > 0 || g.strangers != 0 || g.others != 0 {
		t.Errorf("places are taken after all questions ended: %v, %d, %d", g.asking, g.strangers, g.others)
	}
}

// TestAttackTokensThatDisplaceAGoodOne: then each scrape would depend on a question.
func TestAttackTokensThatDisplaceAGoodOne(t *testing.T) {
	p := play()
	p.get("Bearer reader")
	for i := range 2 * maxAnswers {
		p.get(fmt.Sprintf("Bearer %d", i))
	}
	asked := p.asked
	if got := p.get("Bearer reader"); got != 200 || p.asked != asked {
		t.Errorf("%d after %d questions about a token that was good a moment ago", got, p.asked-asked)
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
