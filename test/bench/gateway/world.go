package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/test/pki"
	"metalfleet.dev/metalfleet/test/process"
)

// macName is the Mac that the scripted agent is.
const macName = "bench"

// world is what a measurement needs beside the proxies: the agent, certificates
// and an API server.
type world struct {
	options
	dir, core    string
	agent        *agent
	certificate  certificates
	nginxVersion string

	direct, nginx, ours *target
	stops               []func() error
}

// certificates of the agent, and of whoever asks it.
type certificates struct {
	authority *pki.Authority
	mac       func() (*tls.Certificate, error)
	client    func() (*tls.Certificate, error)
	roots     *x509.CertPool
}

func newWorld(ctx context.Context, dir, core string, o options, plain bool) (w *world, err error) {
	w = &world{options: o, dir: dir, core: core, agent: &agent{short: answer()}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.stop())
		}
	}()
	if w.certificate, err = newCertificates(filepath.Join(dir, "pki")); err != nil {
		return w, err
	}
	upstream, err := w.listen("127.0.0.1:0", true)
	if err != nil {
		return w, err
	}
	if plain {
		if _, err := w.listen(o.upstream, false); err != nil {
			return w, err
		}
	}
	nothing := func(context.Context) error { return nil }
	client := agentapi.ClientTLS(w.certificate.client, w.certificate.roots, macName)
	client.NextProtos = nil // HTTP/1.1
	w.direct = &target{name: "agent", address: upstream.String(), tls: client, begin: nothing, end: nothing}
	if w.nginx, err = w.newNginx(ctx, upstream); err != nil {
		return w, err
	}
	w.ours, err = w.newGateway(ctx, upstream)
	return w, err
}

// listen has the scripted agent answer on an address.
func (w *world) listen(address string, secure bool) (*net.TCPAddr, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("scripted agent: %w", err)
	}
	w.stops = append(w.stops, w.agent.serve(l, w.certificate, secure))
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return nil, fmt.Errorf("scripted agent listens on %s, which is no TCP address", l.Addr())
	}
	return at, nil
}

// stop ends everything, the last first.
func (w *world) stop() error {
	var errs []error
	for _, stop := range slices.Backward(w.stops) {
		errs = append(errs, stop())
	}
	w.stops = nil
	return errors.Join(errs...)
}

func newCertificates(dir string) (c certificates, err error) {
	leaf := func(name, dns string) pki.Leaf {
		return pki.Leaf{Name: name, Subject: pkix.Name{CommonName: dns}, DNS: []string{dns}}
	}
	if c.authority, err = pki.New(dir, leaf("mac", agentapi.MacServerName(macName)), leaf("gateway", agentapi.GatewayName)); err != nil {
		return c, err
	}
	load := func(name string) (func() (*tls.Certificate, error), error) {
		pair, err := tls.LoadX509KeyPair(c.authority.File(name+".crt"), c.authority.File(name+".key"))
		return func() (*tls.Certificate, error) { return &pair, nil }, err
	}
	var errs [3]error
	var root []byte
	c.mac, errs[0] = load("mac")
	c.client, errs[1] = load("gateway")
	root, errs[2] = os.ReadFile(c.authority.File("ca.crt"))
	c.roots = x509.NewCertPool()
	c.roots.AppendCertsFromPEM(root)
	return c, errors.Join(errs[:]...)
}

// nginxConfig is a plain proxy that keeps its connections and holds nothing
// back: what is usual before engines that stream.
var nginxConfig = template.Must(template.New("nginx").Parse(`daemon off;
worker_processes 1;
worker_rlimit_nofile 16384;
pid {{.Dir}}/nginx.pid;
error_log {{.Dir}}/error.log warn;
events { worker_connections 8192; }
http {
  access_log off;
  client_body_temp_path {{.Dir}}/body;
  proxy_temp_path {{.Dir}}/proxy;
  fastcgi_temp_path {{.Dir}}/fastcgi;
  uwsgi_temp_path {{.Dir}}/uwsgi;
  scgi_temp_path {{.Dir}}/scgi;
  client_body_buffer_size 64k;
  keepalive_requests 100000000;
  upstream mac { server {{.Upstream}}; keepalive 1024; keepalive_requests 100000000; keepalive_time 1h; }
  server {
    listen {{.Listen}} backlog=4096;
    location / {
      proxy_pass https://mac;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 1h;
      proxy_ssl_protocols TLSv1.3;
      proxy_ssl_certificate {{.PKI}}/gateway.crt;
      proxy_ssl_certificate_key {{.PKI}}/gateway.key;
      proxy_ssl_trusted_certificate {{.PKI}}/ca.crt;
      proxy_ssl_verify on;
      proxy_ssl_server_name on;
      proxy_ssl_name {{.Name}};
    }
  }
}
`))

// newNginx is Debian's nginx, on the proxies' core.
func (w *world) newNginx(ctx context.Context, upstream net.Addr) (*target, error) {
	program, err := exec.LookPath("/usr/sbin/nginx")
	if err != nil {
		return nil, fmt.Errorf("nginx is missing, `make bench-gateway` installs it: %w", err)
	}
	said, err := exec.CommandContext(ctx, program, "-v").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("version of nginx: %w", err)
	}
	_, w.nginxVersion, _ = strings.Cut(strings.TrimSpace(string(said)), "nginx/")
	dir := filepath.Join(w.dir, "nginx")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("folder of nginx: %w", err)
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	var config bytes.Buffer
	if err := nginxConfig.Execute(&config, map[string]string{"Dir": dir, "Listen": address, "Upstream": upstream.String(),
		"PKI": filepath.Join(w.dir, "pki"), "Name": agentapi.MacServerName(macName)}); err != nil {
		return nil, fmt.Errorf("configuration of nginx: %w", err)
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, config.Bytes(), 0o644); err != nil {
		return nil, fmt.Errorf("configuration of nginx: %w", err)
	}
	return w.program(nameNginx, address, "", []string{program, "-e", filepath.Join(dir, "error.log"), "-c", file}, accepts(address)), nil
}

// program is a proxy that is started for each round, on the core for proxies.
func (w *world) program(name, address, key string, command []string, ready func(context.Context) error) *target {
	p := process.New(name, "taskset", w.dir, append([]string{"-c", w.core}, command...)...)
	t := &target{name: name, address: address, key: key}
	t.begin = func(ctx context.Context) error {
		if err := p.Start(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		err := p.Ready(ctx, ready)
		t.pid = p.PID()
		return err
	}
	t.end = p.Stop
	w.stops = append(w.stops, func() error { return p.Stop(context.Background()) })
	return t
}

// accepts says that somebody listens.
func accepts(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// answers says that a readiness probe is good.
func answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s says %s", url, resp.Status)
		}
		return nil
	}
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

var peerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// parsePeers reads name=url or name=url=pid, apart by commas.
func parsePeers(list string) ([]*target, error) {
	var out []*target
	for entry := range strings.SplitSeq(list, ",") {
		if entry == "" {
			continue
		}
		name, rest, _ := strings.Cut(entry, "=")
		address, pid, hasPID := strings.Cut(rest, "=")
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "http" || u.Port() == "" || u.RawQuery != "" || strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/v1") || !peerName.MatchString(name) ||
			name == nameOurs || name == nameNginx || slices.ContainsFunc(out, func(t *target) bool { return t.name == name }) {
			return nil, fmt.Errorf("peer %q: write name=http://host:port or name=http://host:port=pid, each name once, with the path that comes before /v1 behind the port where there is one", entry)
		}
		nothing := func(context.Context) error { return nil }
		t := &target{name: name, address: u.Host, path: strings.TrimRight(u.Path, "/"), begin: nothing, end: nothing}
		if hasPID {
			if t.pid, err = strconv.Atoi(pid); err != nil || t.pid < 1 {
				return nil, fmt.Errorf("peer %q: %q is no process id", entry, pid)
			}
		}
		out = append(out, t)
	}
	return out, nil
}
