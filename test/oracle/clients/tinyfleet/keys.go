package tinyfleet

import (
	"context"
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/test/fleet"
)

// keysNamespace is where config/rbac lets a gateway read API keys.
const keysNamespace = "metalfleet-api-keys"

// keyed is the gateway that asks for API keys.
const keyed = "gateway-with-keys"

// Keyed starts another gateway, which asks for API keys, and gives its door and
// the keys by the names that rows have for them: one that may ask the chat model
// alone, and one whose rate no prompt fits in, whenever it is asked.
func (w *World) Keyed(ctx context.Context) (Door, map[string]any, error) {
	tokens := map[string]any{}
	for name, g := range map[string]keys.Grant{
		"narrow": {Models: []string{Chat}},
		"slow":   {Models: []string{"*"}, TokensPerMinute: 1},
	} {
		secret, token, err := keys.NewSecret(keysNamespace, name, g)
		if err != nil {
			return Door{}, nil, err
		}
		if err := w.Client.Create(ctx, secret); err != nil {
			return Door{}, nil, fmt.Errorf("create the key %s: %w", name, err)
		}
		tokens[name+"_key"] = token
	}
	g, err := w.AddGateway(ctx, keyed)
	if err != nil {
		return Door{}, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, fleet.Ready, fmt.Errorf("not within %s", fleet.Ready))
	defer cancel()
	for name, token := range tokens {
		if err := fleet.Poll(ctx, 50*time.Millisecond, keyed+" knows "+name, func(ctx context.Context) error { return fleet.KnowsKey(ctx, g.URL, fmt.Sprint(token)) }); err != nil {
			return Door{}, nil, err
		}
	}
	return Door{Name: "a gateway with keys", URL: g.URL, Keys: true}, tokens, nil
}
