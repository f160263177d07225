package agent

import (
	"context"
	"crypto/tls"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"metalfleet.dev/metalfleet/agent/desired"
	"metalfleet.dev/metalfleet/agent/identity"
	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/agent/report"
)

// Cluster says where a Mac's three objects are.
type Cluster struct {
	REST *rest.Config
	// Name of the MacNode, and Namespace of its Lease and Secret.
	Name, Namespace string
	// StateDir keeps the identity; BootID is the Lease's holder.
	StateDir, BootID string
	Log              logr.Logger
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
	return Links{
		Orders:    desired.NewSource(client, c.Name, c.Log.WithName("desired")),
		Reports:   report.New(client, c.Name, c.Log.WithName("report")),
		Heartbeat: register.NewHeartbeat(client, c.Namespace, c.Name, c.Name+"/"+c.BootID, c.Log.WithName("register")),
		Identity: followed{id, func(ctx context.Context) error {
			return id.Run(ctx, client, c.Namespace)
		}},
	}, nil
}

// followed is an identity with its Secret.
type followed struct {
	identity *identity.Identity
	run      func(context.Context) error
}

func (f followed) Run(ctx context.Context) error { return f.run(ctx) }
func (f followed) ServerTLS() *tls.Config        { return f.identity.ServerTLS() }
