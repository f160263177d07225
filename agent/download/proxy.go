package download

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// dialer connects to the hosts of sources, directly or through the policy's proxy.
type dialer struct {
	policy Policy
	direct net.Dialer // checks each address just before it connects
}

func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if d.policy.Proxy != nil {
		proxy, err := d.policy.Proxy(&url.URL{Scheme: "https", Host: addr})
		if err != nil {
			return nil, failf(v1alpha1.ReasonSourceUnreachable, "the proxy of this Mac's agent is not a valid URL; correct --proxy or HTTPS_PROXY")
		}
		if proxy != nil {
			return d.dialThrough(ctx, proxy, host, port)
		}
	}
	return d.direct.DialContext(context.WithValue(ctx, hostKey{}, host), network, addr)
}

// dialThrough connects to an address of the host that passed the checks. The proxy gets this
// address and not the name: it would resolve the name again, and could be led to another
// address than the one that was checked.
func (d *dialer) dialThrough(ctx context.Context, proxy *url.URL, host, port string) (net.Conn, error) {
	resolver := d.policy.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	addresses, err := resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return nil, err
	}
	last := error(&net.DNSError{Err: "no address", Name: host, IsNotFound: true})
	for _, a := range addresses {
		if last = d.policy.checkAddress(host, a); last != nil {
			continue
		}
		var conn net.Conn
		if conn, last = d.connect(ctx, proxy, netip.AddrPortFrom(a.Unmap(), uint16(number)).String()); last == nil {
			return conn, nil
		}
	}
	return nil, last
}

// connect asks the proxy for a connection to an address.
func (d *dialer) connect(ctx context.Context, proxy *url.URL, target string) (net.Conn, error) {
	port := proxy.Port()
	if port == "" {
		port = proxy.Scheme // http or https
	}
	// The administrator of the Mac chose the proxy: its address is not checked.
	plain := net.Dialer{Timeout: d.policy.Stall, KeepAlive: d.direct.KeepAlive, Resolver: d.policy.Resolver}
	conn, err := plain.DialContext(ctx, "tcp", net.JoinHostPort(proxy.Hostname(), port))
	if err != nil {
		return nil, transientf(err, "cannot reach proxy %s; retrying", proxy.Hostname())
	}
	if proxy.Scheme == "https" {
		conn = tls.Client(conn, &tls.Config{ServerName: proxy.Hostname(), RootCAs: d.policy.Roots, MinVersion: tls.VersionTLS12})
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err = d.handshake(conn, proxy, target)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func (d *dialer) handshake(conn net.Conn, proxy *url.URL, target string) error {
	unreachable := func(err error) error {
		return transientf(err, "proxy %s does not connect to %s; retrying", proxy.Hostname(), target)
	}
	if err := conn.SetDeadline(time.Now().Add(d.policy.Stall)); err != nil {
		return unreachable(err)
	}
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: target}, Host: target, Header: http.Header{"User-Agent": {d.policy.UserAgent}}}
	if u := proxy.User; u != nil {
		password, _ := u.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
	}
	if err := req.Write(conn); err != nil {
		return unreachable(err)
	}
	reader := bufio.NewReader(io.LimitReader(conn, maxResponseHeader))
	resp, err := http.ReadResponse(reader, req)
	if err != nil {
		return unreachable(err)
	}
	switch code := resp.StatusCode; {
	case code >= http.StatusInternalServerError:
		return unreachable(nil)
	case code != http.StatusOK:
		return failf(v1alpha1.ReasonSourceUnreachable, "proxy %s refuses a connection to %s (HTTP %d); it must allow CONNECT to addresses, because the agent checks an address before it uses it", proxy.Hostname(), target, code)
	case reader.Buffered() > 0: // a TLS server waits for its client
		return failf(v1alpha1.ReasonSourceUnreachable, "proxy %s sends data before the connection to %s is used; check that it is an HTTP proxy", proxy.Hostname(), target)
	}
	return conn.SetDeadline(time.Time{})
}
