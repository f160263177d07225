package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"metalfleet.dev/metalfleet/agent/account"
	"metalfleet.dev/metalfleet/agent/desired"
	"metalfleet.dev/metalfleet/agent/hubtoken"
	"metalfleet.dev/metalfleet/agent/identity"
	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/agent/report"
)

// Cluster says where a Mac's three objects are.
type Cluster struct {
	// REST is how the API is reached.
	REST *rest.Config
	// Account keeps REST's token fresh; nil where somebody else does.
	Account *account.Account
	// Name of the MacNode, and Namespace of its Lease and Secret.
	Name, Namespace string
	// StateDir keeps the identity; BootID is the Lease's holder.
	StateDir, BootID string
	Log              logr.Logger
	// Reported and Renewed, if set, are called after each status and heartbeat
	// that the API server took.
	Reported, Renewed func()
}

// Connect makes the links to a cluster. It does not speak to it yet.
func Connect(c Cluster) (Links, error) {
	client, err := register.NewClient(c.REST)
	if err != nil {
		return Links{}, err
	}
	id, err := identity.Open(c.StateDir, c.Name, c.Log.WithName("identity"))
	if err != nil {
		return Links{}, err
	}
	schema, err := report.Served(c.REST, c.Log.WithName("report"))
	if err != nil {
		return Links{}, err
	}
	reports := report.New(client, schema, c.Name, c.Log.WithName("report"))
	reports.Reported = c.Reported
	heartbeat := register.NewHeartbeat(client, c.Namespace, c.Name, c.Name+"/"+c.BootID, c.StateDir, c.Log.WithName("register"))
	heartbeat.Renewed, heartbeat.Shared = c.Renewed, reports.Again
	links := Links{
		Orders:    desired.NewSource(client, c.Name, c.Log.WithName("desired")),
		Reports:   reports,
		Heartbeat: heartbeat,
		Identity: followed{id, func(ctx context.Context) error {
			return id.Run(ctx, client, c.Namespace)
		}},
		Tokens: hubtoken.New(client, c.Namespace, c.Name, c.Log.WithName("hubtoken")),
	}
	if c.Account != nil {
		links.Access = kept(func(ctx context.Context) error { return c.Account.Run(ctx, client) })
	}
	return links, nil
}

// kept is an API token with what renews it.
type kept func(context.Context) error

func (k kept) Run(ctx context.Context) error { return k(ctx) }

// followed is an identity with what renews it.
type followed struct {
	identity *identity.Identity
	run      func(context.Context) error
}

func (f followed) Run(ctx context.Context) error { return f.run(ctx) }
func (f followed) ServerTLS() *tls.Config        { return f.identity.ServerTLS() }
func (f followed) Roots() []*x509.Certificate    { return f.identity.Roots() }
func (f followed) Revoked(uid string) bool       { return f.identity.Revoked(uid) }
func (f followed) WeightsTLS(mac string) (*tls.Config, error) {
	return f.identity.WeightsTLS(mac)
}
func (f followed) TrustedRoots() []string   { return f.identity.TrustedRoots() }
func (f followed) Changed() <-chan struct{} { return f.identity.Changed() }
func (f followed) Trusts(s *tls.ConnectionState) bool {
	return f.identity.Trusts(s)
}
