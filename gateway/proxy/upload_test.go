package proxy_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// TestClientsWithoutKeysAreDistinguished: an agent divides its memory among them.
func TestClientsWithoutKeysAreDistinguished(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("a", say("{}"))
	w.do("POST", chatPath, chatBody, agentapi.HeaderClient, "another")
	if client := (<-m.seen).Header.Get(agentapi.HeaderClient); client == "" || client == "another" {
		t.Errorf("the client is %q", client)
	}
}

// TestAMacThatReadsNoBody: what the gateway keeps of a body counts until the Mac has read it,
// also if the response has begun, and so does the buffer from which net/http sends it.
func TestAMacThatReadsNoBody(t *testing.T) {
	const large, buffer = 4 << 20, 512 << 10
	for name, answers := range map[string]bool{"before it answers": false, "and answers": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m, asked, end := w.addMac("a", nil), make(chan struct{}), make(chan struct{})
			m.server.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Type", "text/event-stream")
				if answers {
					_, _ = io.WriteString(rw, "data: {}\n\n")
					_ = http.NewResponseController(rw).Flush()
				}
				close(asked)
				<-end
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(rw, "data: {}\n\n")
				_ = http.NewResponseController(rw).Flush()
				<-r.Context().Done()
			})
			begun := make(chan *http.Response, 1)
			go func() {
				begun <- w.send(strings.NewReader(chatBody[:len(chatBody)-1] + `,"stream":true,"x":"` + strings.Repeat("x", large) + `"}`))
			}()
			<-asked
			var resp *http.Response
			if answers {
				resp = <-begun
				if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil {
					t.Fatal(err)
				}
			}
			if held := w.proxy.Bodies().Held(); held < large+buffer {
				t.Errorf("%d bytes count for a body of %d and a buffer of %d", held, large, buffer)
			}
			close(end)
			eventually(t, "the memory is free while the response is read", func() bool { return w.proxy.Bodies().Held() == 0 })
			if resp == nil {
				resp = <-begun
			}
			resp.Body.Close()
		})
	}
}
