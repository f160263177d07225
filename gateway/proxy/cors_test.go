package proxy_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/proxy"
)

const page = "http://localhost:3000"

func origins(list ...string) func(*proxy.Config) {
	return func(c *proxy.Config) { c.Origins = list }
}

// A browser sends the preflight before the request, so it cannot have the key.
func TestPreflightIsAnsweredBeforeAuthentication(t *testing.T) {
	for name, tc := range map[string]struct {
		origins []string
		allowed string
	}{
		"a listed origin": {origins: []string{"https://other.example.com", page}, allowed: page},
		"any origin":      {origins: []string{"*"}, allowed: "*"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocked(t, origins(tc.origins...))
			for _, path := range []string{chatPath, dialect.PathModels, "/chat/completions/", dialect.PathResponses + "/resp_1", "/nothing"} {
				resp := l.do("OPTIONS", path, "", "Origin", page, "Access-Control-Request-Method", "POST",
					"Access-Control-Request-Headers", "authorization,content-type,x-stainless-os")
				h := resp.Header
				if resp.StatusCode != http.StatusNoContent || h.Get("Access-Control-Allow-Origin") != tc.allowed ||
					h.Get("Access-Control-Allow-Headers") != "authorization,content-type,x-stainless-os" || !strings.Contains(h.Get("Access-Control-Allow-Methods"), "POST") ||
					h.Get("Access-Control-Max-Age") == "" || !slices.Contains(h.Values("Vary"), "Origin") {
					t.Errorf("%s: %d %v", path, resp.StatusCode, h)
				}
			}
		})
	}
}

// TestAPreflightIsNotRepeatedAtLength: its client has no key, and may read nothing.
func TestAPreflightIsNotRepeatedAtLength(t *testing.T) {
	w := newWorld(t, origins(page))
	for n, allowed := range map[int]int{4 << 10: 4 << 10, 4<<10 + 1: 0, 60 << 10: 0} {
		resp := w.do("OPTIONS", chatPath, "", "Origin", page, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", strings.Repeat("x", n))
		if got := len(resp.Header.Get("Access-Control-Allow-Headers")); resp.StatusCode != http.StatusNoContent || got != allowed {
			t.Errorf("%d bytes of names: %d with %d bytes, want %d", n, resp.StatusCode, got, allowed)
		}
	}
}

// A page must be able to read the error of a refused request, and our headers.
func TestResponsesAndErrorsCanBeReadByAllowedPages(t *testing.T) {
	l := newLocked(t, origins(page))
	l.addMac("a", say("{}"))
	token := l.key("team", keys.Grant{Models: []string{"*"}})
	for name, tc := range map[string]struct {
		token, path string
		status      int
	}{
		"an answer":  {token: token, path: chatPath, status: 200},
		"no key":     {path: chatPath, status: 401},
		"no route":   {token: token, path: "/v1/nothing", status: 404},
		"not a POST": {token: token, path: dialect.PathModels, status: 405},
	} {
		t.Run(name, func(t *testing.T) {
			resp := l.do("POST", tc.path, `{"model":"m","messages":[]}`, "Origin", page, "Authorization", "Bearer "+tc.token)
			h := resp.Header
			if resp.StatusCode != tc.status || h.Get("Access-Control-Allow-Origin") != page || h.Get("Vary") != "Origin" {
				t.Errorf("%d %v", resp.StatusCode, h)
			}
			if got := h.Get("Access-Control-Expose-Headers"); got != "*" {
				t.Errorf("headers exposed: %q", got)
			}
		})
	}
}

func TestOtherPagesAreNotAllowed(t *testing.T) {
	w := newWorld(t, origins(page))
	w.addMac("a", say("{}"))
	for _, origin := range []string{"http://localhost:3001", "https://localhost:3000", "http://localhost:3000.example.com", "null"} {
		resp := w.do("OPTIONS", chatPath, "", "Origin", origin, "Access-Control-Request-Method", "POST")
		if resp.StatusCode != http.StatusForbidden || resp.Header.Get("Access-Control-Allow-Origin") != "" || !strings.Contains(read(t, resp), "--cors-origins") {
			t.Errorf("%s: %d %v", origin, resp.StatusCode, resp.Header)
		}
		resp = w.do("POST", chatPath, `{"model":"m","messages":[]}`, "Origin", origin)
		if resp.StatusCode != 200 || resp.Header.Get("Access-Control-Allow-Origin") != "" || resp.Header.Get("Vary") != "Origin" {
			t.Errorf("%s: %d %v", origin, resp.StatusCode, resp.Header)
		}
	}
	// Not from a page.
	if resp := w.chat(); resp.StatusCode != 200 || resp.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	if resp := w.do("OPTIONS", chatPath, "", "Origin", page); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("OPTIONS that is no preflight: %d", resp.StatusCode)
	}
}

func TestWithoutOriginsPagesAreNotAllowed(t *testing.T) {
	w := newWorld(t)
	w.addMac("a", say("{}"))
	resp := w.do("OPTIONS", chatPath, "", "Origin", page, "Access-Control-Request-Method", "POST")
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("preflight: %d", resp.StatusCode)
	}
	resp = w.do("POST", chatPath, `{"model":"m","messages":[]}`, "Origin", page)
	for name := range resp.Header {
		if strings.HasPrefix(name, "Access-Control-") || name == "Vary" {
			t.Errorf("%s: %s", name, resp.Header.Get(name))
		}
	}
}

func TestOriginsAreParsed(t *testing.T) {
	for list, want := range map[string][]string{
		"":    nil,
		" , ": nil,
		"*":   {"*"},
		"http://localhost:3000, HTTPS://Chat.Example.com": {"http://localhost:3000", "https://chat.example.com"},
		"app://obsidian.md,chrome-extension://abc,null":   {"app://obsidian.md", "chrome-extension://abc", "null"},
		"file://": {"file://"},
	} {
		if got, err := proxy.ParseOrigins(list); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", list, got, err)
		}
	}
	for _, list := range []string{"localhost:3000", "localhost", "http://a/", "http://a/b", "http://", "http://*.a.com/x", "https://a,b", "http://u@a", "http://a?b"} {
		if got, err := proxy.ParseOrigins(list); err == nil || !strings.Contains(err.Error(), "http://localhost:3000") {
			t.Errorf("%q: %v, %v", list, got, err)
		}
	}
}
