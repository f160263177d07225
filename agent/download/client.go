package download

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const (
	maxRedirects      = 5
	maxResponseHeader = 64 << 10
	maxRetryAfter     = 5 * time.Minute
	defaultStall      = 30 * time.Second
	// maxIdle connections stay open for other requests. A server may redirect each to a host of
	// its own invention.
	maxIdle = 16
)

// Policy configures the sources that a Mac's agent may fetch from.
type Policy struct {
	// Allow lists networks that are not public and may be dialed nevertheless
	// (--allow-source-cidr).
	Allow []netip.Prefix
	// AllowNow returns such networks instead of Allow, for each connection; may be nil.
	AllowNow func() []netip.Prefix
	// Roots are the certificate authorities; nil means those of the system.
	Roots *x509.CertPool
	// Resolver resolves names; nil means the system's.
	Resolver *net.Resolver
	// Proxy returns the HTTP proxy for a URL, nil for none; a nil function means none at all.
	Proxy func(*url.URL) (*url.URL, error)
	// Stall cancels a request that receives no byte for this long; 0 means 30 s.
	Stall time.Duration
	// UserAgent names the agent to servers.
	UserAgent string
	// Hosts are the only ones that requests and redirects may lead to, in lower case and
	// with a port unless it is 443; nil means all.
	Hosts []string
}

// Client fetches URLs that tenants name, within a policy.
type Client struct {
	policy Policy
	http   *http.Client
	limit  *Limit // of what responses bring; nil: none
}

// Limited returns a client with the same connections whose responses count towards a limit.
func (c *Client) Limited(l *Limit) *Client { return &Client{policy: c.policy, http: c.http, limit: l} }

// NewClient returns a client. The transport knows no proxy, because that would get the names
// of hosts and bypass the checks of their addresses: dialer uses the policy's.
func NewClient(p Policy) *Client {
	if p.Stall <= 0 {
		p.Stall = defaultStall
	}
	if p.UserAgent == "" {
		p.UserAgent = "metalfleet-agent"
	}
	d := &dialer{policy: p, direct: net.Dialer{Timeout: p.Stall, KeepAlive: 15 * time.Second, Resolver: p.Resolver, ControlContext: p.control}}
	transport := &http.Transport{
		Proxy:                  nil,
		DialContext:            d.dial,
		TLSClientConfig:        &tls.Config{RootCAs: p.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    p.Stall,
		ResponseHeaderTimeout:  p.Stall,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxResponseHeader,
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        30 * time.Second,
	}
	c := &Client{policy: p}
	c.http = &http.Client{Transport: transport, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if err := checkRedirect(req, via); err != nil {
			return err
		}
		return c.checkHost(req.URL)
	}}
	return c
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return failf(v1alpha1.ReasonSourceUnreachable, "host %s redirects more than %d times; use the file's final address as the source", via[0].URL.Hostname(), maxRedirects)
	}
	keepSecret(req, via)
	return CheckURL(req.URL)
}

// CheckURL refuses URLs that can never be a source. The address that the name
// resolves to is checked when it is dialed.
func CheckURL(u *url.URL) error {
	switch {
	case u.Scheme != "https":
		return failf(v1alpha1.ReasonSourceForbidden, "the source leads to %q, but only https:// is allowed", u.Scheme+"://")
	case u.Hostname() == "" || u.Opaque != "":
		return failf(v1alpha1.ReasonSourceForbidden, "the source has no host; write https://HOST/PATH")
	case u.User != nil:
		return failf(v1alpha1.ReasonSourceForbidden, "the source contains a user or password, which anyone who can read the manifest would see; remove it")
	}
	return nil
}

// checkHost refuses hosts that the policy does not list.
func (c *Client) checkHost(u *url.URL) error {
	host := strings.ToLower(strings.TrimSuffix(u.Host, ":443"))
	if c.policy.Hosts == nil || slices.Contains(c.policy.Hosts, host) {
		return nil
	}
	return failf(v1alpha1.ReasonSourceForbidden, "host %s is not allowed here", host)
}

// Get requests a URL. The response has status 200, 206 or 416; everything else is
// an *Error, or wraps the context's error. The caller closes the body.
func (c *Client) Get(ctx context.Context, source string, header http.Header) (*http.Response, error) {
	return c.ask(ctx, http.MethodGet, source, header)
}

// Open requests a whole file at a URL, and returns its bytes, which the caller closes, and
// their number, -1 if the server does not report it.
func (c *Client) Open(ctx context.Context, source string) (bytes io.ReadCloser, length int64, err error) {
	resp, err := c.Get(ctx, source, nil)
	if err != nil {
		return nil, 0, err
	}
	return resp.Body, resp.ContentLength, nil
}

// Head returns the header of a HEAD request.
func (c *Client) Head(ctx context.Context, source string, header http.Header) (http.Header, error) {
	resp, err := c.ask(ctx, http.MethodHead, source, header)
	if err != nil {
		return nil, err
	}
	return resp.Header, resp.Body.Close()
}

func (c *Client) ask(ctx context.Context, method, source string, header http.Header) (*http.Response, error) {
	u, err := url.Parse(source)
	if err != nil {
		return nil, failf(v1alpha1.ReasonSourceForbidden, "the source is not a valid URL; write https://HOST/PATH with special characters percent-encoded")
	}
	if err := CheckURL(u); err != nil {
		return nil, err
	}
	if err := c.checkHost(u); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	watch := &stallWatch{after: c.policy.Stall, cancel: cancel}
	watch.timer = time.AfterFunc(3*c.policy.Stall, watch.fire) // DNS, dial, handshake, headers
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		watch.stop()
		return nil, failf(v1alpha1.ReasonSourceForbidden, "the source is not a valid URL; write https://HOST/PATH")
	}
	req.URL.Fragment = ""
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("User-Agent", c.policy.UserAgent)
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := c.http.Do(req)
	if err != nil {
		defer watch.stop()
		return nil, explain(ctx, u.Hostname(), err)
	}
	watch.alive()
	if err := judge(resp, u.Hostname()); err != nil {
		defer watch.stop()
		defer resp.Body.Close()
		return nil, withAnswer(err, originOf(u), resp) // all of it within one stall: nothing keeps the watch alive
	}
	resp.Body = &body{ReadCloser: resp.Body, ctx: ctx, watch: watch, host: u.Hostname(), limit: c.limit}
	return resp, nil
}

// judge turns a response without a file into an error.
func judge(resp *http.Response, host string) error {
	switch code := resp.StatusCode; {
	case code == http.StatusOK || code == http.StatusPartialContent || code == http.StatusRequestedRangeNotSatisfiable:
		if e := resp.Header.Get("Content-Encoding"); e != "" && e != "identity" {
			return failf(v1alpha1.ReasonSourceUnreachable, "host %s sends the file with content encoding %.32q; serve the file unencoded", host, e)
		}
		return nil
	case code == http.StatusNotFound || code == http.StatusGone:
		return failf(v1alpha1.ReasonSourceNotFound, "host %s has no such file (HTTP %d); check the path of the source", host, code)
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return failf(v1alpha1.ReasonSourceForbidden, "host %s denied access to the file (HTTP %d); the source must be readable without credentials", host, code)
	case code == http.StatusTooManyRequests || code == http.StatusRequestTimeout || code == http.StatusTooEarly || code >= 500:
		e := transientf(nil, "host %s returned HTTP %d; retrying", host, code)
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
			e.RetryAfter = min(time.Duration(min(s, 86400))*time.Second, maxRetryAfter)
		}
		return e
	default:
		return failf(v1alpha1.ReasonSourceUnreachable, "host %s returned HTTP %d, want 200; check the source", host, code)
	}
}

// withAnswer adds the reason that a hub or bucket gave. Of a hub's texts one is
// parsed: the Hub has no code for an unknown token.
func withAnswer(err error, start string, resp *http.Response) error {
	var typed *Error
	if !errors.As(err, &typed) {
		return err
	}
	typed.Status, typed.Elsewhere = resp.StatusCode, originOf(resp.Request.URL) != start
	typed.Challenge = resp.Header.Get("WWW-Authenticate")
	switch code := resp.Header.Get("X-Error-Code"); {
	case errorCode.MatchString(code):
		typed.Code = code
	case code == "" && resp.Header.Get("X-Error-Message") == invalidCredentials:
		typed.Code = CodeInvalidToken
	case code == "" && strings.HasSuffix(strings.TrimSpace(strings.Split(resp.Header.Get("Content-Type"), ";")[0]), "/xml"):
		typed.Code = bucketCode(resp.Body)
	}
	return err
}

// bucketCode returns the error code in an S3 error document.
func bucketCode(body io.Reader) string {
	var said struct {
		XMLName xml.Name `xml:"Error"`
		Code    string   `xml:"Code"`
	}
	raw, err := io.ReadAll(io.LimitReader(body, maxResponseHeader))
	if err != nil || xml.Unmarshal(raw, &said) != nil || !errorCode.MatchString(said.Code) {
		return ""
	}
	return said.Code
}

const invalidCredentials = "Invalid credentials in Authorization header"

// CodeInvalidToken is the code for a token that the hub does not know.
const CodeInvalidToken = "InvalidToken"

var errorCode = regexp.MustCompile(`^[A-Za-z]{1,64}$`)

// stallWatch cancels a request that receives no data.
type stallWatch struct {
	after  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

var errStalled = errors.New("no data received in time")

func (w *stallWatch) fire() {
	w.cancel(transientf(errStalled, "the connection stalled; retrying"))
}
func (w *stallWatch) alive() { w.timer.Reset(w.after) }
func (w *stallWatch) stop() {
	w.timer.Stop()
	w.cancel(context.Canceled)
}

// body is a response body under a stallWatch.
type body struct {
	io.ReadCloser
	ctx   context.Context // of this one request
	watch *stallWatch
	host  string
	limit *Limit
}

func (b *body) Read(p []byte) (int, error) {
	if b.limit != nil {
		p = p[:min(int64(len(p)), b.limit.most())]
	}
	n, err := b.ReadCloser.Read(p)
	if waited := b.limit.took(b.ctx, n); waited != nil && err == nil {
		err = waited
	}
	if n > 0 {
		b.watch.alive()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = explain(b.ctx, b.host, err)
	}
	return n, err
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.watch.stop()
	return err
}

// ContentRange is the parsed header of a partial response.
type ContentRange struct {
	// First and Last byte, both included.
	First, Last int64
	// Total length of the file; -1 if the server does not report it.
	Total int64
}

// ParseContentRange parses "bytes FIRST-LAST/TOTAL".
func ParseContentRange(s string) (ContentRange, error) {
	var r ContentRange
	var total string
	if n, err := fmt.Sscanf(s, "bytes %d-%d/%s", &r.First, &r.Last, &total); err != nil || n != 3 {
		return r, fmt.Errorf("cannot parse content range %.64q", s)
	}
	r.Total = -1
	if total != "*" {
		v, err := strconv.ParseInt(total, 10, 64)
		if err != nil {
			return r, fmt.Errorf("cannot parse content range %.64q", s)
		}
		r.Total = v
	}
	if r.First < 0 || r.Last < r.First || r.Total >= 0 && r.Last >= r.Total {
		return r, fmt.Errorf("content range %.64q is inconsistent", s)
	}
	return r, nil
}
