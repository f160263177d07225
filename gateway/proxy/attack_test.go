package proxy_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/test/patience"
)

// A compromised Mac makes each of its responses as large as it can.
func TestAttackHeaderBombsOfAMac(t *testing.T) {
	w := newWorld(t)
	w.addMac("a", func(rw http.ResponseWriter, _ *http.Request) {
		for i := range 3 {
			rw.Header().Set(fmt.Sprintf("X-Bomb-%d", i), strings.Repeat("h", agentapi.MaxHeaderBytes/2))
		}
	})
	if resp := w.do("POST", chatPath, chatBody); resp.StatusCode != http.StatusBadGateway && resp.StatusCode != http.StatusServiceUnavailable || len(resp.Header) > 30 {
		t.Errorf("%s with %d headers", resp.Status, len(resp.Header))
	}
}

// A compromised Mac cannot decide which pages may read a response, nor set limits.
func TestAttackHeadersOfAMacInPlaceOfTheGateways(t *testing.T) {
	const origin = "https://good.example"
	names := []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Credentials", "Access-Control-Expose-Headers", "Vary", "X-Ratelimit-Remaining-Requests", "Set-Cookie", agentapi.HeaderRequestID,
		"Alt-Svc", "Refresh", "Link", "Clear-Site-Data", "Strict-Transport-Security", "Content-Disposition", "X-Of-The-Mac"}
	for name, origins := range map[string][]string{"other origins": nil, "its origin": {origin}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *proxy.Config) { c.Origins = origins })
			w.addMac("a", func(rw http.ResponseWriter, _ *http.Request) {
				for _, n := range names {
					rw.Header().Set(n, "forged")
				}
				rw.Header().Set("Retry-After", "7")
				rw.Header().Set("Content-Type", "text/html")
			})
			resp := w.do("POST", chatPath, chatBody, "Origin", origin)
			for _, n := range names {
				if got := strings.Join(resp.Header.Values(n), ","); strings.Contains(got, "forged") && (n != "Vary" || origins != nil) {
					t.Errorf("%s: %s", n, got)
				}
			}
			if got := resp.Header.Get("Access-Control-Allow-Origin"); (got == origin) != (origins != nil) || resp.Header.Get("Retry-After") != "7" {
				t.Errorf("the response allows %q: %v", got, resp.Header)
			}
			if kind, sniff := resp.Header.Get("Content-Type"), resp.Header.Get("X-Content-Type-Options"); kind != "application/octet-stream" || sniff != "nosniff" {
				t.Errorf("a browser would show %s (%s)", kind, sniff)
			}
		})
	}
}

// A status that is none does not reach the client, nor end its connection.
func TestAttackAStatusOfAMacThatIsNone(t *testing.T) {
	for _, status := range []int{600, 777, 999} {
		w := newWorld(t)
		w.addMac("a", func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(status) })
		w.wantRefusal(w.do("POST", chatPath, chatBody), refusal{status: 502, code: agentapi.CodeEngineLost})
	}
}

// Headers and addresses that an agent would refuse do not look like a failure of the Mac.
func TestAttackLongHeadersOfAClient(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("a", say("{}"))
	long := strings.Repeat("a", 60<<10)
	for _, name := range []string{"Accept", anthropic.HeaderVersion, agentapi.HeaderProgress} {
		if resp := w.do("POST", chatPath, chatBody, name, long); resp.StatusCode != 200 {
			t.Errorf("%s: status %d", name, resp.StatusCode)
		}
	}
	before := m.requests.Load()
	for _, address := range []string{dialect.PathResponses + "/" + responses.NewID("a") + "/" + long, dialect.PathResponses + "/" + responses.NewID("a") + "?after=" + long} {
		if resp := w.do("GET", address, ""); resp.StatusCode != 404 {
			t.Errorf("status %d of a long address", resp.StatusCode)
		}
	}
	if m.requests.Load() != before || w.counter("macs_suspected_total") != 0 {
		t.Error("a long address reached the Mac, or made it suspect")
	}
}

// No body is decompressed, regardless of the encoding.
func TestAttackDecompressionBomb(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 64 {
		if _, err := z.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	m := w.addMac("a", say("{}"))
	for _, encoding := range []string{"gzip", "GZIP", "br", "zstd", "deflate", "identity, gzip", "gzip, gzip"} {
		w.wantRefusal(w.do("POST", chatPath, bomb.String(), "Content-Encoding", encoding), refusal{status: 415, code: openai.CodeUnsupportedEncoding})
	}
	if m.requests.Load() != 0 {
		t.Error("the Mac saw a packed body")
	}
	if resp := w.do("POST", chatPath, chatBody, "Content-Encoding", "identity"); resp.StatusCode != 200 {
		t.Errorf("a plain body: %d", resp.StatusCode)
	}
}

// TestAttackDeepJSON: nesting is bounded before anything recurses.
func TestAttackDeepJSON(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("a", say("{}"))
	const depth = 1 << 20
	for name, body := range map[string]string{
		"lists":       `{"model":"m","messages":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}`,
		"objects":     `{"model":"m","messages":` + strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth) + `}`,
		"never shut":  strings.Repeat("[", 8*depth),
		"in the name": `{"model":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}`,
	} {
		t.Run(name, func(t *testing.T) {
			w.wantRefusal(w.do("POST", chatPath, body), refusal{status: 400, code: openai.CodeMalformedJSON})
		})
	}
	if m.requests.Load() != 0 {
		t.Error("the Mac saw it")
	}
}

// TestAttackLogInjection: client input stays inside one quoted value of one line, and is
// truncated.
func TestAttackLogInjection(t *testing.T) {
	l := newLocked(t)
	l.addMac("a", say("{}"))
	token := l.key("k", keys.Grant{Models: []string{"m"}})
	const evil = "x\ntime=2000 level=ERROR msg=forged\r\u2028\x1b[2J\x1b]0;owned\x07\" key=root"
	name := `"` + strings.NewReplacer("\n", `\n`, "\r", `\r`, "\x1b", `\u001b`, "\x07", `\u0007`, `"`, `\"`).Replace(evil) + `"`
	before := strings.Count(l.log.String(), "\n")
	l.wantRefusal(l.with(token, "POST", chatPath, `{"model":`+name+`}`), refusal{status: 404, code: openai.CodeModelNotFound})
	l.wantRefusal(l.with(token, "GET", "/v1/models/x%0Atime=2000%20level=ERROR%1b%5b2J", ""), refusal{status: 404, code: openai.CodeModelNotFound})
	l.wantRefusal(l.with("", "POST", chatPath, chatBody, "X-Request-Id", "r key=root", "X-Forwarded-For", "key=root"), refusal{status: 401, code: openai.CodeInvalidAPIKey})
	l.wantRefusal(l.with("mf_key=root\t level=ERROR_A", "POST", chatPath, chatBody), refusal{status: 401, code: openai.CodeInvalidAPIKey})
	l.wantRefusal(l.with(token, "POST", chatPath, `{"model":"`+strings.Repeat("long", 1<<20)+`"}`), refusal{status: 404, code: openai.CodeModelNotFound})
	text := l.log.String()
	all := strings.Split(strings.TrimSpace(text), "\n")
	if got := len(all) - before; got != 5 {
		t.Errorf("%d lines for 5 refusals:\n%s", got, text)
	}
	for _, line := range all {
		if !strings.HasPrefix(line, "time=") || len(line) > 512 {
			t.Errorf("a line of %d bytes: %.600q", len(line), line)
		}
		if i := strings.IndexFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\u2028' }); i >= 0 {
			t.Errorf("a control character in %q", line)
		}
		if strings.Contains(line, " key=root") && !strings.Contains(line, `\" key=root`) {
			t.Errorf("a forged value in %q", line)
		}
	}
}

// slowClient accepts each write after a while: no single one reaches its deadline.
type slowClient struct {
	*httptest.ResponseRecorder
	writes int
}

func (c *slowClient) Write(p []byte) (int, error) {
	time.Sleep(100 * time.Millisecond)
	c.writes++
	return c.ResponseRecorder.Write(p)
}

func (*slowClient) SetWriteDeadline(time.Time) error { return nil }
func (*slowClient) SetReadDeadline(time.Time) error  { return nil }
func (*slowClient) FlushError() error                { return nil }

// A client that reads a little before each deadline does not keep the slot of a replica.
func TestAttackAClientThatReadsSlowly(t *testing.T) {
	w := newWorld(t, func(c *proxy.Config) { c.WriteTimeout = 300 * time.Millisecond })
	m := w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
		out := openai.NewEventWriter(rw)
		for r.Context().Err() == nil && out.Send(map[string]string{"text": "x"}) == nil {
			time.Sleep(5 * time.Millisecond)
		}
	})
	c := &slowClient{ResponseRecorder: httptest.NewRecorder()}
	ctx, cancel := context.WithTimeout(t.Context(), patience.Of(t))
	defer cancel()
	w.proxy.ServeHTTP(c, httptest.NewRequestWithContext(ctx, "POST", chatPath, strings.NewReader(chatBody)))
	if ctx.Err() != nil || c.writes == 0 || c.writes > 30 {
		t.Errorf("the response ended after %d writes: %v", c.writes, ctx.Err())
	}
	<-m.left
}

// A compromised Mac sends informational responses and never the final one.
func TestAttackInformationalResponsesWithoutEnd(t *testing.T) {
	l := newLocked(t)
	token := l.key("team", keys.Grant{Models: []string{"*"}})
	ended := make(chan struct{})
	l.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
		defer close(ended)
		for i := 0; r.Context().Err() == nil && i < 1000; i++ {
			rw.WriteHeader(http.StatusProcessing)
		}
		if r.Context().Err() == nil {
			say("{}")(rw, r)
		}
	})
	if resp := l.with(token, "POST", chatPath, chatBody); resp.StatusCode == http.StatusOK {
		t.Error("1,000 informational responses were read at once")
	}
	<-ended
}
