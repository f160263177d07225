package proxy_test

import (
	"net/http"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/proxy"
)

// TestTheAccessLogHasNoTextOfRequests: no text of a request or its response.
func TestTheAccessLogHasNoTextOfRequests(t *testing.T) {
	const secret = "the-client-wrote-this"
	for name, tc := range map[string]struct {
		off    bool
		stream bool
		body   string
		key    bool
		want   []string // parts of the one line
	}{
		"a whole answer":     {body: `{"model":"m","messages":[{"content":"` + secret + `"}]}`, key: true, want: []string{"key=good", "client=127.0.0.1:", "model=ns/m", "status=200", "tokens=150", "seconds=", "route=" + chatPath, "requestID="}},
		"a stream":           {body: `{"model":"m","stream":true,"user":"` + secret + `"}`, stream: true, key: true, want: []string{"key=good", "model=ns/m", "status=200", "tokens=150"}},
		"an unknown model":   {body: `{"model":"` + secret + `"}`, key: true, want: []string{"key=good", `model=""`, "status=404", "tokens=0"}},
		"without a key":      {body: chatBody, want: []string{`key=""`, `model=""`, "status=401"}},
		"where it is not on": {off: true, body: chatBody, key: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocked(t, func(c *proxy.Config) { c.AccessLog = !tc.off })
			l.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
				if tc.stream {
					events(nil, secret, "[DONE]")(rw, r)
					agentapi.SetTokens(rw.Header(), http.TrailerPrefix+agentapi.HeaderTokens, 100, 50)
					return
				}
				agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 100, 50)
				say(`{"text":"`+secret+`"}`)(rw, r)
			})
			token := ""
			if tc.key {
				token = l.key("good", keys.Grant{Models: []string{"m"}})
			}
			read(t, l.with(token, "POST", chatPath, tc.body))
			l.idle()
			var lines []string
			for line := range strings.Lines(l.log.String()) {
				if strings.Contains(line, "logger=access") {
					lines = append(lines, line)
				}
			}
			if tc.off && len(lines) == 0 {
				return
			}
			if tc.off || len(lines) != 1 {
				t.Fatalf("%d lines: %q", len(lines), lines)
			}
			for _, part := range tc.want {
				if !strings.Contains(lines[0], part) {
					t.Errorf("%s lacks %q", lines[0], part)
				}
			}
			if strings.Contains(lines[0], secret) || token != "" && strings.Contains(lines[0], token) {
				t.Errorf("it holds what a client wrote: %s", lines[0])
			}
		})
	}
}

// TestTheAccessLogOfClientsWithoutAKeyIsBounded: any number of their lines would displace the log.
func TestTheAccessLogOfClientsWithoutAKeyIsBounded(t *testing.T) {
	const most = 100
	for name, keyed := range map[string]bool{"where keys are required": true, "where no keys are": false} {
		t.Run(name, func(t *testing.T) {
			l := newLocked(t, func(c *proxy.Config) {
				c.AccessLog = true
				if !keyed {
					c.Keys = nil
				}
			})
			l.addMac("a", say(`{}`))
			lines := func() int { return strings.Count(l.log.String(), "logger=access") }
			want := most + 20
			for range want {
				read(t, l.with("", "POST", chatPath, chatBody))
			}
			l.idle()
			if !keyed {
				eventually(t, "each is logged", func() bool { return lines() == want })
				return
			}
			if n := lines(); n != most {
				t.Errorf("%d lines of %d refused requests, want %d", n, want, most)
			}
			read(t, l.with(l.key("good", keys.Grant{Models: []string{"m"}}), "POST", chatPath, chatBody))
			eventually(t, "a request with a key is logged", func() bool { return lines() == most+1 && strings.Contains(l.log.String(), "key=good") })
		})
	}
}
