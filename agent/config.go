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
	"metalfleet.dev/metalfleet/agent/neighbour"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/agent/power"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/agent/tunnel"
	"metalfleet.dev/metalfleet/agent/upgrade"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Orders says what this Mac is to do. Run delivers whenever that changes, and
// nothing while it is not known.
type Orders interface {
	Run(ctx context.Context, deliver func(journal.Orders)) error
}

// Reports takes what this Mac reports. Offer and Again do not wait.
type Reports interface {
	Run(ctx context.Context) error
	Offer(*v1alpha1.MacNodeStatus)
	// Again has the status written although it did not change.
	Again()
	// Last writes one status at the end.
	Last(ctx context.Context, s *v1alpha1.MacNodeStatus) error
}

// Identity is how this Mac proves who it is.
type Identity interface {
	Run(ctx context.Context) error
	ServerTLS() *tls.Config
	// WeightsTLS is how this Mac dials the one called mac for weights, and Roots
	// are those that may have signed a grant for them.
	WeightsTLS(mac string) (*tls.Config, error)
	Roots() []*x509.Certificate
	// Revoked reports whether the MacNode with that UID was deleted.
	Revoked(uid string) bool
	// TrustedRoots are the fingerprints of the roots that gateways are checked
	// against at the next handshake.
	TrustedRoots() []string
	// Changed receives after other roots are trusted.
	Changed() <-chan struct{}
	// Trusts says whether the root under which a connection was opened is still
	// trusted.
	Trusts(*tls.ConnectionState) bool
}

// Heartbeat says that this Mac lives.
type Heartbeat interface {
	// Run returns register.ErrFenced when another machine has this identity.
	Run(ctx context.Context) error
	// Await returns once this agent may begin.
	Await(ctx context.Context) error
}

// Tokens are the hub tokens that this Mac was given.
type Tokens interface {
	Run(ctx context.Context) error
	// Of is the token that an order's tokenRef names, if it is here.
	Of(ref string) (download.Bearer, bool)
	// Changed receives after tokens changed.
	Changed() <-chan struct{}
}

// Access is this Mac's way into the API, which Run keeps open.
type Access interface {
	Run(ctx context.Context) error
}

// Links are the agent's ways to the rest of the world.
type Links struct {
	Orders    Orders
	Reports   Reports
	Identity  Identity
	Heartbeat Heartbeat
	// Tokens may be nil: then there are none.
	Tokens Tokens
	// Access may be nil: then the links need nothing kept open.
	Access Access
}

// Config is what an agent is made of.
type Config struct {
	Log  logr.Logger
	Name string
	// Version of the program.
	Version string
	// BootID tells this start from others.
	BootID string
	// StateDir holds journal, weights, identity, sockets and logs.
	StateDir string
	// ModelRoot is where file:// sources lie; empty means that there is none.
	ModelRoot string
	// Engine is the program, and EngineEnv its environment.
	Engine    string
	EngineEnv []string
	// Sandbox says whether engines confine themselves; empty means where the
	// system can.
	Sandbox wire.Sandbox
	Probe   probe.Probe
	Sources download.Policy
	// HubEndpoint is where hf:// sources lie; empty means the Hugging Face Hub.
	HubEndpoint string
	// DownloadRate bounds all downloads together, in bytes per second, and
	// DownloadsAtOnce their number; 0 means no bound, and the store's own.
	DownloadRate    int64
	DownloadsAtOnce int
	// GivesAtOnce is how many other Macs are given weights at a time, 0 means none;
	// GiveRate bounds all of them together, in bytes per second, 0 means no bound.
	GivesAtOnce int
	GiveRate    int64
	// NeighbourPace is how patient this Mac is with others that it copies from.
	NeighbourPace neighbour.Pace
	// DiskMarks are the watermarks of the disk that holds weights.
	DiskMarks store.Marks
	// Cache is where engines keep what they computed of prompts, and how much of
	// the disk they may take; nil means nowhere.
	Cache *cold.Options
	// Listener is the one port; Address is how gateways reach it.
	Listener net.Listener
	Address  v1alpha1.MacAddress
	// Tunnels opens connections to gateways, which Listener gives; nil opens none.
	Tunnels *tunnel.Listener
	// Metrics is where figures are scraped from without TLS; nil means nowhere.
	Metrics net.Listener
	// Grace is how long running requests may go on after the agent was told to stop.
	Grace  time.Duration
	Timing pool.Timing
	// Power tells that this Mac is about to sleep or to shut down; nil: nobody does.
	Power func(ctx context.Context, hear func(power.Notice)) error
	// Launched says who started this agent, and whether it is on trial; nil:
	// nobody and no.
	Launched *upgrade.Launched
	// Verbose says that the agent was started to log details, and LogDebug changes
	// that while it runs; nil: it stays.
	Verbose  bool
	LogDebug func(on bool)
	// ReleaseKeys are those that have to have signed another agent; empty: any.
	ReleaseKeys upgrade.Keys
	// NoUpgrades refuses orders to run another agent.
	NoUpgrades bool
	// WrapPool may replace the journal and the engines of the pool by others that
	// wrap them, as tests with failpoints do; nil leaves them.
	WrapPool func(*pool.Config)
	Links    Links
}
