package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/test/pki"
)

// What the scripted agent is asked for: the value of "user" in a request.
const (
	askShort  = "short"
	askEvents = "events" // "max_tokens" of them, at eventsEach per second
	askIdle   = "idle"
)

const (
	eventsEach = 50 // per second and stream
	shortBytes = 400
)

// question is the body of a request, as long as a short chat.
func question(ask string, tokens int) []byte {
	return []byte(`{"model":"bench","user":"` + ask + `","max_tokens":` + strconv.Itoa(tokens) + `,"stream":` + strconv.FormatBool(ask != askShort) +
		`,"messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"` + string(bytes.Repeat([]byte("word "), 40)) + `"}]}`)
}

// shortAnswer has shortBytes bytes.
func shortAnswer() []byte {
	const head, tail = `{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"`, `"}}]}`
	return []byte(head + string(bytes.Repeat([]byte("x"), shortBytes-len(head)-len(tail))) + tail)
}

// eventText is an event of a chat, as an engine sends it for a token.
const eventText = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"bench","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n"

const doneText = "data: [DONE]\n\n"

// agent answers as an agent does, without a model.
type agent struct{ short []byte }

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	h := w.Header()
	switch {
	case bytes.Contains(body, []byte(`"user":"`+askShort+`"`)):
		h.Set("Content-Type", "application/json")
		h.Set("Content-Length", strconv.Itoa(len(a.short)))
		agentapi.SetTokens(h, agentapi.HeaderTokens, 60, 10)
		_, _ = w.Write(a.short)
	case bytes.Contains(body, []byte(`"user":"`+askIdle+`"`)):
		if event(w) == nil {
			<-r.Context().Done()
		}
	case bytes.Contains(body, []byte(`"user":"`+askEvents+`"`)):
		stream(w, r, tokensIn(body))
	default:
		http.Error(w, "not in the script", http.StatusBadRequest)
	}
}

func tokensIn(body []byte) int {
	_, rest, _ := bytes.Cut(body, []byte(`"max_tokens":`))
	digits, _, _ := bytes.Cut(rest, []byte(","))
	n, _ := strconv.Atoi(string(digits)) // no number, no events
	return n
}

func event(w http.ResponseWriter) error {
	w.Header().Set("Content-Type", "text/event-stream")
	if _, err := io.WriteString(w, eventText); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

func stream(w http.ResponseWriter, r *http.Request, n int) {
	tick := time.NewTicker(time.Second / eventsEach)
	defer tick.Stop()
	for range n {
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
		if event(w) != nil {
			return
		}
	}
	_, _ = io.WriteString(w, doneText)
}

// serveMac serves as an agent does, until stop. Without a TLS configuration it
// speaks plain HTTP.
func serveMac(l net.Listener, handler http.Handler, config *tls.Config) (stop func() error) {
	s := &http.Server{Handler: handler, TLSConfig: config, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1000}}
	ended := make(chan error, 1)
	go func() { // until stop, which waits for it
		if config == nil {
			ended <- s.Serve(l)
		} else {
			ended <- s.ServeTLS(l, "", "")
		}
	}()
	return func() error {
		hurry, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = s.Shutdown(hurry) // Close ends the streams that still wait
		err := s.Close()
		if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, fmt.Errorf("serve on %s: %w", l.Addr(), e))
		}
		return err
	}
}

// certificates of Macs, and of the gateway that asks them.
type certificates struct {
	authority *pki.Authority
	roots     *x509.CertPool
}

func leafOf(name, dns string) pki.Leaf {
	return pki.Leaf{Name: name, Subject: pkix.Name{CommonName: dns}, DNS: []string{dns}}
}

// certify replaces the certificate of a Mac by one for its MacNode.
func (c *certificates) certify(mac, uid string) error {
	leaf := leafOf(mac, agentapi.MacServerName(mac))
	leaf.URIs = []*url.URL{agentapi.MacURI(uid)}
	return c.authority.Issue(leaf)
}

func newCertificates(dir string, macs ...string) (*certificates, error) {
	leaves := []pki.Leaf{leafOf("gateway", agentapi.GatewayName)}
	for _, mac := range macs {
		leaves = append(leaves, leafOf(mac, agentapi.MacServerName(mac)))
	}
	authority, err := pki.New(dir, leaves...)
	if err != nil {
		return nil, err
	}
	root, err := os.ReadFile(authority.File("ca.crt"))
	if err != nil {
		return nil, err
	}
	c := &certificates{authority: authority, roots: x509.NewCertPool()}
	if !c.roots.AppendCertsFromPEM(root) {
		return nil, errors.New("ca.crt holds no certificate")
	}
	return c, nil
}

// pair loads the certificate of a Mac or of the gateway, at each handshake: that of a
// Mac is replaced when there is a MacNode.
func (c *certificates) pair(name string) (func() (*tls.Certificate, error), error) {
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.authority.File(name+".crt"), c.authority.File(name+".key"))
		return &pair, err
	}
	_, err := load()
	return load, err
}

// server is the TLS configuration of a Mac's agent.
func (c *certificates) server(mac string) (*tls.Config, error) {
	pair, err := c.pair(mac)
	return agentapi.ServerTLS(pair, c.roots), err
}

// identity is the data of the Secret that the operator makes for gateways.
func (c *certificates) identity() (map[string][]byte, error) {
	data := map[string][]byte{}
	for key, file := range map[string]string{"tls.crt": "gateway.crt", "tls.key": "gateway.key", "ca.crt": "ca.crt"} {
		b, err := os.ReadFile(c.authority.File(file))
		if err != nil {
			return nil, fmt.Errorf("the gateway's identity: %w", err)
		}
		data[key] = b
	}
	return data, nil
}
