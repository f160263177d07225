package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/peer"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/agent/power"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/agent/tunnel"
	"metalfleet.dev/metalfleet/agent/upgrade"
	"metalfleet.dev/metalfleet/api/logs"
	"metalfleet.dev/metalfleet/api/tracing"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
)

// DesiredState delivers the desired state of this Mac. Run calls deliver whenever
// it changes, and not while it is unknown.
type DesiredState interface {
	Run(ctx context.Context, deliver func(journal.Desired)) error
}

// Reports writes what this Mac reports. Offer and Again do not block.
type Reports interface {
	Run(ctx context.Context) error
	Offer(*v1alpha1.MacNodeStatus)
	// Again writes the status although it did not change.
	Again()
	// Last writes one status before the agent ends.
	Last(ctx context.Context, s *v1alpha1.MacNodeStatus) error
}

// Identity is the TLS identity of this Mac.
type Identity interface {
	Run(ctx context.Context) error
	ServerTLS() *tls.Config
	// WeightsTLS returns the configuration to dial the named Mac for weights, and
	// Roots the certificates that may sign grants for them.
	WeightsTLS(mac string) (*tls.Config, error)
	Roots() []*x509.Certificate
	// Revoked reports whether the MacNode with that UID was deleted.
	Revoked(uid string) bool
	// TrustedRoots returns the fingerprints of the roots that gateways are
	// verified against at the next handshake.
	TrustedRoots() []string
	// Changed receives after the trusted roots changed.
	Changed() <-chan struct{}
	// Trusts reports whether the root under which a connection was opened is
	// still trusted.
	Trusts(*tls.ConnectionState) bool
}

// Heartbeat reports that this Mac is alive.
type Heartbeat interface {
	// Run returns register.ErrFenced if another machine has this identity.
	Run(ctx context.Context) error
	// Await returns once this agent may start.
	Await(ctx context.Context) error
}

// Tokens are the hub tokens that are available to this Mac.
type Tokens interface {
	Run(ctx context.Context) error
	// Of returns the token that a tokenRef names, if it is available.
	Of(ref string) (download.Bearer, bool)
	// Changed receives after tokens changed.
	Changed() <-chan struct{}
}

// Access keeps this Mac's access to the API valid.
type Access interface {
	Run(ctx context.Context) error
}

// Links connect the agent to the cluster.
type Links struct {
	Desired   DesiredState
	Reports   Reports
	Identity  Identity
	Heartbeat Heartbeat
	// Tokens may be nil: then there are none.
	Tokens Tokens
	// Access may be nil: then the links need no renewal.
	Access Access
}

// Config configures an agent.
type Config struct {
	Log  logr.Logger
	Name string
	// Version of the program.
	Version string
	// BootID distinguishes this start from others.
	BootID string
	// StateDir holds journal, weights, identity, sockets and logs.
	StateDir string
	// ModelRoot is the directory of file:// sources; empty allows none.
	ModelRoot string
	// Engine is the path of the engine program, and EngineEnv its environment.
	Engine    string
	EngineEnv []string
	// Sandbox selects whether engines confine themselves; empty means if the
	// system supports it.
	Sandbox wire.Sandbox
	Probe   probe.Probe
	Sources download.Policy
	// ImageHosts are the hosts from which images of requests may be fetched; none are if
	// it is empty.
	ImageHosts []string
	// HubEndpoint is the server for hf:// sources; empty means the Hugging Face
	// Hub.
	HubEndpoint string
	// DownloadRate bounds all downloads together, in bytes per second, and
	// DownloadsAtOnce their number; 0 means no bound for the rate, and the
	// store's default for the number.
	DownloadRate    int64
	DownloadsAtOnce int
	// GivesAtOnce is how many peers may copy weights from this Mac at a time, 0
	// means none; GiveRate bounds all of them together, in bytes per second, 0
	// means no bound.
	GivesAtOnce int
	GiveRate    int64
	// PeerPace sets the timeouts for copies from peers.
	PeerPace peer.Pace
	// DiskMarks are the watermarks of the disk that stores weights.
	DiskMarks store.Marks
	// Cache configures the prompt cache on disk; nil disables it.
	Cache *cold.Options
	// Listener is the agent's only port; Address is how gateways reach it.
	Listener net.Listener
	Address  v1alpha1.MacAddress
	// Tunnels opens connections to gateways, which Listener accepts; nil opens
	// none.
	Tunnels *tunnel.Listener
	// Metrics serves metrics without TLS; nil disables it.
	Metrics net.Listener
	// HeapBytes is the most live memory of the process with which requests begin; 0 means any.
	HeapBytes int64
	// Grace is how long running requests may take after the agent was asked to
	// stop.
	Grace  time.Duration
	Timing pool.Timing
	// Power reports that this Mac is about to sleep or shut down; nil disables
	// it.
	Power func(ctx context.Context, notify func(power.Notice)) error
	// Launched describes the launcher of this agent and whether the agent is on
	// trial; nil: it has no launcher.
	Launched *upgrade.Launched
	// Tracer sends the spans of requests; nil sends none.
	Tracer *tracing.Tracer
	// LogTail has the end of this agent's log, which gateways may read; nil: they may not.
	LogTail *logs.Tail
	// Verbose is true if the agent was started with debug logging, and LogDebug
	// changes that while it runs; nil: it stays.
	Verbose  bool
	LogDebug func(on bool)
	// ByFlag are the settings that a flag of the agent sets: a MacClass does not replace
	// them.
	ByFlag v1alpha1.AgentSettings
	// ReleaseKeys are the keys one of which must have signed a new agent; empty:
	// none is needed.
	ReleaseKeys upgrade.Keys
	// NoUpgrades refuses to upgrade the agent.
	NoUpgrades bool
	// WrapPool may wrap the journal and the engines of the pool, for tests with
	// failpoints; nil changes nothing.
	WrapPool func(*pool.Config)
	Links    Links
}
