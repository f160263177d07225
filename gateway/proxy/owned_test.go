package proxy_test

import (
	"net"
	"net/http"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/keys"
)

// TestAttackATenantHoldsEveryConnection: one with many requests is refused more while another
// one, also with few connections left, is served.
func TestAttackATenantHoldsEveryConnection(t *testing.T) {
	l := newLocked(t)
	hold := make(chan struct{})
	m := l.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
		select {
		case <-hold:
		case <-r.Context().Done():
		}
		say(`{}`)(rw, r)
	})
	attacker, victim := l.key("attacker", keys.Grant{Models: []string{"*"}, Tenant: "x"}), l.key("victim", keys.Grant{Models: []string{"*"}, Tenant: "y"})
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: intake.Guard(l.proxy), ConnContext: intake.Context}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(&intake.Listener{Listener: raw, Total: 6}) }()
	t.Cleanup(func() { _ = s.Close(); <-ended })
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(token string) (status int, code string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+raw.Addr().String()+chatPath, strings.NewReader(chatBody))
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(r)
		if err != nil {
			return 0, err.Error()
		}
		return resp.StatusCode, read(t, resp)
	}
	statuses := make(chan int, 4)
	for range 3 {
		go func() { status, _ := ask(attacker); statuses <- status }()
		<-m.seen
	}
	if status, text := ask(attacker); status != http.StatusTooManyRequests || !strings.Contains(text, openai.CodeRateLimitExceeded) {
		t.Errorf("a tenant that has half of the connections gets %d: %s", status, text)
	}
	go func() { status, _ := ask(victim); statuses <- status }()
	<-m.seen
	close(hold)
	for range 4 {
		if status := <-statuses; status != http.StatusOK {
			t.Errorf("a request that was accepted gets %d", status)
		}
	}
}
