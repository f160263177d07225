package gateway

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/test/bench/peers"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/process"
)

// macName is the Mac of the scripted agent.
const macName = "bench"

// world is everything that the proxies are measured with, and the proxies.
type world struct {
	proxyOptions
	*scenario.Env
	dir, core    string
	agent        *agent
	certificates *certificates
	nginxVersion string

	direct, nginx, ours *target
}

// newWorld starts everything but the proxies, each of which is started for its
// round.
func newWorld(ctx context.Context, e *scenario.Env, core string, o proxyOptions) (w *world, err error) {
	w = &world{proxyOptions: o, Env: e, core: core, agent: &agent{short: shortAnswer()}}
	if w.dir, err = e.Scratch(); err != nil {
		return nil, err
	}
	if w.certificates, err = newCertificates(filepath.Join(w.dir, "pki"), macName); err != nil {
		return nil, err
	}
	upstream, err := w.listen("127.0.0.1:0", true)
	if err != nil {
		return nil, err
	}
	if o.peers != "" {
		if _, err := w.listen(o.upstream, false); err != nil {
			return w, err
		}
	}
	if w.direct, err = w.straight(upstream); err != nil {
		return nil, err
	}
	if w.nginx, err = w.newNginx(ctx, upstream); err != nil {
		return nil, err
	}
	w.ours, err = w.newGateway(ctx, upstream)
	return w, err
}

// listen has the scripted agent serve on an address.
func (w *world) listen(address string, secure bool) (*net.TCPAddr, error) {
	config, err := w.certificates.server(macName)
	if err != nil {
		return nil, err
	}
	if !secure {
		config = nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("scripted agent: %w", err)
	}
	w.Cleanup(serveMac(l, w.agent, config))
	return l.Addr().(*net.TCPAddr), nil
}

// straight is the agent without a proxy.
func (w *world) straight(upstream net.Addr) (*target, error) {
	pair, err := w.certificates.pair("gateway")
	if err != nil {
		return nil, err
	}
	config := agentapi.ClientTLS(pair, w.certificates.roots, macName)
	config.NextProtos = nil // HTTP/1.1
	return &target{name: nameAgent, address: upstream.String(), tls: config}, nil
}

// nginxConfig is a plain proxy that keeps its connections and does not buffer,
// as is usual in front of engines that stream.
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

// newNginx installs Debian's nginx unless it is there.
func (w *world) newNginx(ctx context.Context, upstream net.Addr) (*target, error) {
	install := exec.CommandContext(ctx, "bash", filepath.Join("test", "bench", "gateway", "nginx.sh"))
	install.Stdout, install.Stderr = os.Stderr, os.Stderr
	if err := install.Run(); err != nil {
		return nil, fmt.Errorf("install nginx: %w", err)
	}
	const program = "/usr/sbin/nginx"
	version, err := exec.CommandContext(ctx, program, "-v").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("version of nginx: %w", err)
	}
	_, w.nginxVersion, _ = strings.Cut(strings.TrimSpace(string(version)), "nginx/")
	dir := filepath.Join(w.dir, "nginx")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("folder of nginx: %w", err)
	}
	address, err := peers.FreeAddress()
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
	w.Cleanup(func() error { return p.Stop(context.Background()) })
	return t
}

// accepts succeeds when an address accepts connections.
func accepts(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// answers succeeds when a readiness probe does.
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
			return fmt.Errorf("%s answered %s", url, resp.Status)
		}
		return nil
	}
}

// parsePeers parses name=url or name=url=pid, separated by commas.
func parsePeers(list string) ([]*target, error) {
	var out []*target
	for entry := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' }) {
		parts := strings.Split(entry, "=")
		names := []string{"", nameOurs, nameNginx, nameAgent}
		for _, t := range out {
			names = append(names, t.name)
		}
		if len(parts) == 2 {
			parts = append(parts, "0")
		}
		if len(parts) != 3 || slices.Contains(names, parts[0]) {
			return nil, fmt.Errorf("peer %q: want name=url or name=url=pid, each name once", entry)
		}
		u, err := url.Parse(parts[1])
		if err != nil || u.Scheme != "http" || u.Port() == "" || strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/v1") {
			return nil, fmt.Errorf("peer %q: want http://host:port, followed by the path in front of /v1 if there is one", entry)
		}
		pid, err := strconv.Atoi(parts[2])
		if err != nil {
			return nil, fmt.Errorf("peer %q: %q is no process id", entry, parts[2])
		}
		nothing := func(context.Context) error { return nil }
		out = append(out, &target{name: parts[0], address: u.Host, path: strings.TrimRight(u.Path, "/"), pid: pid, begin: nothing, end: nothing})
	}
	return out, nil
}
