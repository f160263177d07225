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

// Cluster configures access to a Mac's three objects.
type Cluster struct {
	// REST is the configuration to reach the API.
	REST *rest.Config
	// Account keeps REST's token fresh; nil if it needs no renewal.
	Account *account.Account
	// Name of the MacNode, and Namespace of its Lease and Secret.
	Name, Namespace string
	// StateDir keeps the identity; BootID is the Lease's holder.
	StateDir, BootID string
	Log              logr.Logger
	// Reported and Renewed, if set, are called after each status and heartbeat
	// that the API server accepted.
	Reported, Renewed func()
}

// Connect returns the links to a cluster. It makes no request yet.
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
		Desired:   desired.NewSource(client, c.Name, c.Log.WithName("desired")),
		Reports:   reports,
		Heartbeat: heartbeat,
		Identity: renewedIdentity{id, func(ctx context.Context) error {
			return id.Run(ctx, client, c.Namespace)
		}},
		Tokens: hubtoken.New(client, c.Namespace, c.Name, c.Log.WithName("hubtoken")),
	}
	if c.Account != nil {
		links.Access = accessFunc(func(ctx context.Context) error { return c.Account.Run(ctx, client) })
	}
	return links, nil
}

// accessFunc implements Access.
type accessFunc func(context.Context) error

func (k accessFunc) Run(ctx context.Context) error { return k(ctx) }

// renewedIdentity is an identity with the function that renews it.
type renewedIdentity struct {
	identity *identity.Identity
	run      func(context.Context) error
}

func (f renewedIdentity) Run(ctx context.Context) error { return f.run(ctx) }
func (f renewedIdentity) ServerTLS() *tls.Config        { return f.identity.ServerTLS() }
func (f renewedIdentity) Roots() []*x509.Certificate    { return f.identity.Roots() }
func (f renewedIdentity) Revoked(uid string) bool       { return f.identity.Revoked(uid) }
func (f renewedIdentity) WeightsTLS(mac string) (*tls.Config, error) {
	return f.identity.WeightsTLS(mac)
}
func (f renewedIdentity) TrustedRoots() []string   { return f.identity.TrustedRoots() }
func (f renewedIdentity) Changed() <-chan struct{} { return f.identity.Changed() }
func (f renewedIdentity) Trusts(s *tls.ConnectionState) bool {
	return f.identity.Trusts(s)
}
