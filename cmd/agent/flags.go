package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/net/http/httpproxy"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd"

	"metalfleet.dev/metalfleet/agent"
	"metalfleet.dev/metalfleet/agent/account"
	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/peer"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/agent/power"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/agent/tunnel"
	"metalfleet.dev/metalfleet/agent/upgrade"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/logs"
	"metalfleet.dev/metalfleet/api/tracing"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/wire"
)

type flags struct {
	given                                                          map[string]bool // names of the flags that were given
	name, kubeconfig, namespace, state, modelRoot, engine, sandbox string
	listen, advertise, mac, metrics, sources, proxy, hub           string
	imageHosts                                                     string
	tunnels                                                        []string
	releaseKeys                                                    string
	downloadRate, cacheDir, cacheLimit, cacheFree                  string
	giveRate                                                       string
	downloadsAtOnce, diskHigh, diskLow, givesAtOnce                int
	probeInterval, grace                                           time.Duration
	verbose, version, upgrades                                     bool
	format                                                         logs.Format
	traces                                                         tracing.Flags
}

func parse(args []string, out io.Writer) (flags, error) {
	var f flags
	set := flag.NewFlagSet("agent", flag.ContinueOnError)
	set.SetOutput(out)
	set.StringVar(&f.name, "name", "", "`name` of this Mac's MacNode (default: the name used when it joined)")
	set.Func("tunnel", "connect to each gateway at this `host:port`, for gateways that cannot reach this Mac; may be repeated. With --advertise, gateways still connect directly when they can", func(gateway string) error {
		if host, port, err := net.SplitHostPort(gateway); err != nil || host == "" || port == "" {
			return fmt.Errorf("%q is not a valid address such as gateways.example.com:7444", gateway)
		}
		f.tunnels = append(f.tunnels, gateway)
		return nil
	})
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig `file` for the API server, instead of the credentials from joining; these credentials are not renewed")
	set.StringVar(&f.namespace, "namespace", "", "namespace of this Mac's Lease and Secret (default: the namespace used when it joined, or metalfleet-system)")
	set.StringVar(&f.state, "state", "", "`folder` for the journal, weights, sockets and logs")
	set.StringVar(&f.state, "state-dir", "", "the same as --state")
	set.StringVar(&f.modelRoot, "model-root", "", "`folder` that file:// sources are relative to (default: file:// sources are disabled)")
	set.StringVar(&f.engine, "engine", besideMe("engine"), "path of the engine `program`")
	set.StringVar(&f.sandbox, "engine-sandbox", string(wire.SandboxAuto), "confine engines to their model, cache folder and socket: auto (where the system can), require (refuse to start an engine that cannot be confined) or off")
	set.StringVar(&f.listen, "listen", fmt.Sprintf(":%d", agentapi.DefaultPort), "`address` that the agent listens on")
	set.StringVar(&f.advertise, "advertise", "", "host or `host:port` at which gateways reach this Mac (default: the listen address, or this machine's host name)")
	set.StringVar(&f.mac, "mac", "", "use this hardware description instead of detecting it: `chip=M2Ultra,memory=192Gi`")
	set.StringVar(&f.metrics, "metrics", "", "loopback `address` of the /metrics endpoint (default: disabled)")
	set.StringVar(&f.sources, "allow-source-cidr", "", "comma-separated private `CIDRs` that https:// and hf:// sources may use")
	set.StringVar(&f.proxy, "proxy", "", "`URL` of an HTTP proxy for downloads, which gets addresses that the agent has checked, not names (default: $HTTPS_PROXY, except for hosts in $NO_PROXY)")
	set.StringVar(&f.imageHosts, "allow-image-hosts", "", "comma-separated `hosts` from which images that requests name by https:// URL may be fetched (default: none)")
	set.StringVar(&f.hub, "hub-endpoint", hub.DefaultEndpoint, "`URL` of the hub or mirror for hf:// sources")
	set.StringVar(&f.downloadRate, "download-rate", "", "maximum `bytes` per second for all downloads together, such as 50M or 20Mi (default: unlimited)")
	set.IntVar(&f.downloadsAtOnce, "downloads-at-once", store.FetchesAtOnce, "maximum number of concurrent model downloads, 1 to 16")
	set.IntVar(&f.givesAtOnce, "give-at-once", peer.GivesAtOnce, "maximum number of other Macs that copy weights from this Mac at a time, 0 to 16; 0 disables sharing")
	set.StringVar(&f.giveRate, "give-rate", "200M", "maximum `bytes` per second for all copies of weights to other Macs together")
	set.IntVar(&f.diskHigh, "disk-high-percent", 90, "disk usage (percent) above which unused weights are evicted, least recently used first; 0 evicts only when a download needs the space")
	set.IntVar(&f.diskLow, "disk-low-percent", 85, "disk usage (percent) at which the eviction of unused weights stops")
	set.StringVar(&f.cacheDir, "cache-dir", "", "`folder` of the prefix cache on disk, for deployments with prefixCache.diskLimit; default: kv in the folder of --state; off: disabled")
	set.StringVar(&f.cacheLimit, "cache-limit", "", "maximum disk `bytes` of the prefix cache, such as 200Gi (default: limited only by free space)")
	set.StringVar(&f.cacheFree, "cache-free", "10Gi", "disk `bytes` that the prefix cache leaves free")
	set.DurationVar(&f.probeInterval, "probe-interval", time.Second, "interval of memory measurements while an engine runs")
	set.DurationVar(&f.grace, "grace", agent.DefaultGrace, "time for running requests to finish after SIGTERM")
	set.BoolVar(&f.upgrades, "upgrades", true, "upgrade this agent when the cluster's administrator requests another version")
	set.StringVar(&f.releaseKeys, "release-keys", "", "PEM `file` with the public keys of the releases that this Mac installs; an upgrade without a signature of one of them is refused (default: no signature is required)")
	set.BoolVar(&f.verbose, "verbose", false, "log debug messages")
	set.Var(&f.format, "log-format", logs.Usage)
	f.traces.Trusted = true
	f.traces.Bind(set)
	set.BoolVar(&f.version, "version", false, "print the version and exit")
	if len(args) > 0 && args[0] == "run" {
		args = args[1:]
	}
	if err := set.Parse(args); err != nil {
		return f, err
	}
	if set.NArg() > 0 {
		return f, fmt.Errorf("unexpected argument %q; the agent takes flags only", set.Arg(0))
	}
	f.given = map[string]bool{}
	set.Visit(func(g *flag.Flag) { f.given[g.Name] = true })
	return f, nil
}

// settings are those that flags set, so that a MacClass does not replace them. c holds
// their values.
func (f flags) settings(c agent.Config) (s v1alpha1.AgentSettings) {
	bytes := func(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }
	if f.given["verbose"] {
		if s.LogLevel = v1alpha1.LogInfo; f.verbose {
			s.LogLevel = v1alpha1.LogDebug
		}
	}
	if f.given["cache-limit"] && c.Cache != nil {
		s.CacheLimit = bytes(c.Cache.Budget.LimitBytes)
	}
	if f.given["cache-free"] && c.Cache != nil {
		s.CacheFree = bytes(c.Cache.Budget.FloorBytes)
	}
	if f.given["hub-endpoint"] {
		s.HubEndpoint = f.hub
	}
	if f.given["allow-source-cidr"] {
		s.AllowedSourceCIDRs = []string{}
		for _, network := range c.Sources.Allow {
			s.AllowedSourceCIDRs = append(s.AllowedSourceCIDRs, network.String())
		}
	}
	if f.given["download-rate"] {
		s.DownloadRate = bytes(c.DownloadRate)
	}
	if f.given["give-rate"] {
		s.GiveRate = bytes(c.GiveRate)
	}
	if f.given["disk-high-percent"] || f.given["disk-low-percent"] {
		s.DiskMarks = &v1alpha1.DiskMarks{HighPercent: int32(f.diskHigh), LowPercent: int32(f.diskLow)}
	}
	if f.given["model-root"] {
		s.ModelRoot = f.modelRoot
	}
	return s
}

// besideMe finds a program that is installed with this one.
func besideMe(name string) string {
	me, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(me), name)
}

// check refuses what cannot be meant, before anything is touched.
func (f flags) check() error {
	switch {
	case f.name != "" && join.CheckMac(f.name) != nil:
		return fmt.Errorf("--name %w", join.CheckMac(f.name))
	case f.state == "":
		return errors.New("--state is required: the folder in which this agent keeps its state")
	case f.kubeconfig != "" && f.name == "":
		return errors.New("--name is required with --kubeconfig: a kubeconfig does not contain the name of the MacNode")
	case f.probeInterval < 10*time.Millisecond || f.probeInterval > time.Minute:
		return fmt.Errorf("--probe-interval %s, want 10ms to 1m", f.probeInterval)
	case store.Marks{High: f.diskHigh, Low: f.diskLow}.Check() != nil:
		return fmt.Errorf("--disk-high-percent and --disk-low-percent: %w", store.Marks{High: f.diskHigh, Low: f.diskLow}.Check())
	case f.grace < 0:
		return fmt.Errorf("--grace %s is negative", f.grace)
	case f.downloadsAtOnce < 1 || f.downloadsAtOnce > 16:
		return fmt.Errorf("--downloads-at-once %d, want 1 to 16", f.downloadsAtOnce)
	case f.givesAtOnce < 0 || f.givesAtOnce > 16:
		return fmt.Errorf("--give-at-once %d, want 0 to 16", f.givesAtOnce)
	}
	if _, err := rate("--give-rate", f.giveRate); err != nil {
		return err
	}
	if _, err := f.rate(); err != nil {
		return err
	}
	if _, err := f.cache(); err != nil {
		return err
	}
	if u, err := url.Parse(f.hub); err != nil || download.CheckURL(u) != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("--hub-endpoint %q is not a valid URL of a hub; write https://HOST", f.hub)
	}
	if !slices.Contains(wire.Sandboxes, wire.Sandbox(f.sandbox)) {
		return fmt.Errorf("--engine-sandbox %q: want auto, require or off", f.sandbox)
	}
	if _, err := exec.LookPath(f.engine); err != nil {
		return fmt.Errorf("--engine: program not found: %w", err)
	}
	if f.metrics != "" {
		host, _, err := net.SplitHostPort(f.metrics)
		if ip, ipErr := netip.ParseAddr(host); err != nil || host != "localhost" && (ipErr != nil || !ip.IsLoopback()) {
			return fmt.Errorf("--metrics %q is not a loopback address such as 127.0.0.1:9443: the metrics endpoint has no authentication", f.metrics)
		}
	}
	return nil
}

// engineVariables are the environment variables, or prefixes that end in "_", that an
// engine is given. An agent's environment may hold tokens and keys.
var engineVariables = []string{
	"GOCOVERDIR", "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GORACE", "GOTRACEBACK",
	"PATH", "HOME", "TMPDIR", "LANG", "TZ", "LC_", "METALFLEET_", "MLX_", "OMP_", "OPENBLAS_", "CUDA_", "LD_LIBRARY_PATH", "DYLD_",
}

func engineEnvironment(own []string) []string {
	return slices.DeleteFunc(slices.Clone(own), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return name == "METALFLEET_API_KEY" || !slices.ContainsFunc(engineVariables, func(kept string) bool {
			return name == kept || strings.HasSuffix(kept, "_") && strings.HasPrefix(name, kept)
		})
	})
}

// heapBytes is the most live memory with which requests begin: about three times what all that counts
// memory of requests allows, so that it is reached by what none of them counts. collectBytes, the
// collector's limit for all memory of the process, keeps garbage from being many times as much.
const (
	heapBytes    = 1 << 30
	collectBytes = heapBytes * 5 / 4
)

// config turns flags into what an agent is made of; it opens the ports last.
func (f flags) config(log logr.Logger, launched *upgrade.Launched) (agent.Config, error) {
	c := agent.Config{
		Log: log, Name: f.name, Version: version, BootID: agent.NewBootID(), StateDir: f.state, ModelRoot: f.modelRoot, HubEndpoint: f.hub,
		Engine: f.engine, EngineEnv: engineEnvironment(os.Environ()), Sandbox: wire.Sandbox(f.sandbox), Grace: f.grace, Timing: pool.Timing{Poll: f.probeInterval},
		HeapBytes: heapBytes,
	}
	var err error
	if c.Engine, err = filepath.Abs(f.engine); err != nil {
		return c, fmt.Errorf("--engine: %w", err)
	}
	if c.Cache, err = f.cache(); err != nil {
		return c, err
	}
	c.DiskMarks = store.Marks{High: f.diskHigh, Low: f.diskLow}
	c.Power = power.Watch
	c.DownloadsAtOnce, c.NoUpgrades, c.Launched = f.downloadsAtOnce, !f.upgrades, launched
	if c.ReleaseKeys, err = f.keys(); err != nil {
		return c, err
	}
	if c.DownloadRate, err = f.rate(); err != nil {
		return c, err
	}
	c.GivesAtOnce = f.givesAtOnce
	if c.GiveRate, err = rate("--give-rate", f.giveRate); err != nil {
		return c, err
	}
	if c.Probe, err = f.probe(); err != nil {
		return c, err
	}
	c.ImageHosts = strings.FieldsFunc(strings.ToLower(f.imageHosts), func(r rune) bool { return r == ',' || r == ' ' })
	if c.Sources, err = f.policy(); err != nil {
		return c, err
	}
	c.ByFlag = f.settings(c)
	cluster, err := f.cluster(log)
	if err != nil {
		return c, err
	}
	if err := os.MkdirAll(f.state, 0o700); err != nil {
		return c, fmt.Errorf("--state: %w", err)
	}
	c.Name, cluster.BootID = cluster.Name, c.BootID
	cluster.Reported, cluster.Renewed = launched.Reported, launched.Renewed
	if c.Links, err = agent.Connect(cluster); err != nil {
		return c, err
	}
	busy := func(err error) { // the agent guards its engines meanwhile
		log.Error(err, "Another program has a port of this agent: it cannot be reached there until the port is free")
	}
	if c.Listener, err = intake.Await(f.listen, busy); err != nil {
		return c, fmt.Errorf("--listen: %w", err)
	}
	if f.metrics != "" {
		if c.Metrics, err = intake.Await(f.metrics, busy); err != nil {
			return c, fmt.Errorf("--metrics: %w", err)
		}
	}
	return c, f.reach(&c, log)
}

// reach sets how gateways connect to this Mac.
func (f flags) reach(c *agent.Config, log logr.Logger) (err error) {
	if c.Address, err = address(f.advertise, c.Listener.Addr()); err != nil || len(f.tunnels) == 0 {
		return err
	}
	if c.Address.Reach = v1alpha1.ReachTunnel; f.advertise != "" {
		c.Address.Reach = v1alpha1.ReachDirectOrTunnel
	}
	c.Tunnels = tunnel.Listen(c.Listener, tunnel.Options{Mac: c.Name, Gateways: f.tunnels, Log: log.WithName("tunnel")})
	c.Listener = c.Tunnels
	return nil
}

// keys are those of --release-keys; none where the flag is not given.
func (f flags) keys() (upgrade.Keys, error) {
	if f.releaseKeys == "" {
		return upgrade.Keys{}, nil
	}
	text, err := os.ReadFile(f.releaseKeys)
	if err != nil {
		return upgrade.Keys{}, fmt.Errorf("--release-keys: %w", err)
	}
	keys, err := upgrade.ReadKeys(text)
	if err != nil {
		return upgrade.Keys{}, fmt.Errorf("--release-keys %s: %w", f.releaseKeys, err)
	}
	return keys, nil
}

// cluster is what this Mac joined, or what a kubeconfig says.
func (f flags) cluster(log logr.Logger) (agent.Cluster, error) {
	c := agent.Cluster{Name: f.name, Namespace: f.namespace, StateDir: f.state, Log: log}
	if f.kubeconfig == "" {
		own, err := account.Open(f.state, log.WithName("account"))
		if err != nil {
			return c, err
		}
		if f.name != "" && f.name != own.Mac() {
			return c, fmt.Errorf("--name %s, but the folder %s belongs to Mac %s: omit --name, or use another folder with --state", f.name, f.state, own.Mac())
		}
		c.Account, c.REST, c.Name, c.Namespace = own, own.REST(), own.Mac(), own.Namespace()
	} else {
		var err error
		if c.REST, err = clientcmd.BuildConfigFromFlags("", f.kubeconfig); err != nil {
			return c, fmt.Errorf("--kubeconfig: %w", err)
		}
		if c.Namespace == "" {
			c.Namespace = "metalfleet-system"
		}
	}
	c.REST.UserAgent = userAgent()
	return c, nil
}

func (f flags) probe() (probe.Probe, error) {
	system := probe.NewSystem()
	if f.mac == "" {
		return system, nil
	}
	d, err := probe.ParseDeclaration(f.mac)
	if err != nil {
		return nil, fmt.Errorf("--mac: %w", err)
	}
	return probe.NewDeclared(d, system), nil
}

// rate is the bound of all downloads in bytes per second, 0 for none.
func (f flags) rate() (int64, error) { return rate("--download-rate", f.downloadRate) }

func rate(name, said string) (int64, error) {
	if said == "" {
		return 0, nil
	}
	q, err := resource.ParseQuantity(said)
	if err != nil || q.Value() < download.MinRate {
		return 0, fmt.Errorf("%s %q, want bytes per second, at least %d, such as 50M or 20Mi", name, said, download.MinRate)
	}
	return q.Value(), nil
}

// cacheOff is the folder that is none.
const cacheOff = "off"

// cache is where engines keep blocks on disk; nil for nowhere. The folder is
// looked at when the agent runs: a disk that is away stops no engine.
func (f flags) cache() (*cold.Options, error) {
	o := &cold.Options{Dir: f.cacheDir}
	for _, size := range []struct {
		name, said string
		to         *int64
	}{{"--cache-limit", f.cacheLimit, &o.Budget.LimitBytes}, {"--cache-free", f.cacheFree, &o.Budget.FloorBytes}} {
		if size.said == "" {
			continue
		}
		q, err := resource.ParseQuantity(size.said)
		if err != nil || q.Value() < 0 || q.Value() == 0 && size.to == &o.Budget.LimitBytes {
			return nil, fmt.Errorf("%s %q, want bytes, such as 50Gi; --cache-dir %s disables the cache", size.name, size.said, cacheOff)
		}
		*size.to = q.Value()
	}
	switch f.cacheDir {
	case cacheOff:
		return nil, nil
	case "":
		o.Dir = filepath.Join(f.state, "kv")
	}
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, fmt.Errorf("--cache-dir: %w", err)
	}
	o.FS = disk.Contained{Dir: o.Dir}
	return o, nil
}

func (f flags) policy() (download.Policy, error) {
	p := download.Policy{UserAgent: userAgent()}
	environment := httpproxy.FromEnvironment()
	environment.HTTPSProxy = cmp.Or(f.proxy, environment.HTTPSProxy)
	if environment.HTTPSProxy != "" {
		u, err := url.Parse(environment.HTTPSProxy)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			return p, errors.New("--proxy or HTTPS_PROXY is not a valid URL such as http://proxy.example.com:3128")
		}
		p.Proxy = environment.ProxyFunc()
	}
	for _, s := range strings.FieldsFunc(f.sources, func(r rune) bool { return r == ',' }) {
		block, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			return p, fmt.Errorf("--allow-source-cidr: %q is not a CIDR such as 10.0.0.0/8", s)
		}
		p.Allow = append(p.Allow, block)
	}
	return p, nil
}

// address is the address that gateways get: the advertised host and port, or
// those of the listener, or this machine's name.
func address(advertise string, on net.Addr) (v1alpha1.MacAddress, error) {
	tcp, ok := on.(*net.TCPAddr)
	if !ok {
		return v1alpha1.MacAddress{}, fmt.Errorf("--listen: %s is not a TCP address", on)
	}
	host, port := advertise, tcp.Port
	if h, p, err := net.SplitHostPort(advertise); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return v1alpha1.MacAddress{}, fmt.Errorf("--advertise: %q is not a valid port", p)
		}
		host, port = h, int(n)
	}
	if host != "" && !isHost(host) {
		return v1alpha1.MacAddress{}, fmt.Errorf("--advertise: %q is neither a host name nor an IP address; write HOST or HOST:PORT", advertise)
	}
	if host == "" && !tcp.IP.IsUnspecified() {
		host = tcp.IP.String()
	}
	if host == "" {
		name, err := os.Hostname()
		if err != nil {
			return v1alpha1.MacAddress{}, fmt.Errorf("cannot determine this machine's host name; set it with --advertise: %w", err)
		}
		if host, err = hostName(name); err != nil {
			return v1alpha1.MacAddress{}, err
		}
	}
	return v1alpha1.MacAddress{Host: host, Port: int32(port)}, nil
}

// hostName refuses a name by which a gateway would connect to itself: the API server refuses each
// status with it. macOS has it while it starts, and launchd starts the agent again.
func hostName(name string) (string, error) {
	if plain := strings.ToLower(strings.TrimSuffix(name, ".")); plain == "localhost" || strings.HasSuffix(plain, ".localhost") {
		return "", fmt.Errorf("the host name of this machine is %s, at which no gateway reaches it; give it another one, or set --advertise", name)
	}
	return name, nil
}

// isHost reports whether a text is an IP address or a host name.
func isHost(text string) bool {
	if net.ParseIP(text) != nil {
		return true
	}
	letters := strings.Trim(text, "0123456789.")
	return letters != "" && len(validation.IsDNS1123Subdomain(strings.ToLower(strings.TrimSuffix(text, ".")))) == 0
}
