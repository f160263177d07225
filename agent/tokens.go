package agent

import (
	"context"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/inspect"
)

// hubTokens are the hub tokens of this Mac for its downloads and inspections. The source
// may be nil: then there are none.
type hubTokens struct{ source Tokens }

// of returns the hub token that an assignment's tokenRef names, if it is available.
func (t hubTokens) of(ref string) (download.Bearer, bool) {
	if t.source == nil {
		return "", false
	}
	return t.source.Of(ref)
}

// require is of for a download. It is called before each request, so that a replaced or
// removed token is not used any more.
func (t hubTokens) require(ref string) (download.Bearer, error) {
	if b, ok := t.of(ref); ok {
		return b, nil
	}
	return "", inspect.MissingToken()
}

// run receives the tokens until ctx ends, and calls changed after they changed.
func (t hubTokens) run(ctx context.Context, changed func()) error {
	if t.source == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	ended := make(chan error, 1)
	go func() { ended <- t.source.Run(ctx) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-t.source.Changed():
			changed()
		}
	}
}
