package agent

import (
	"context"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/inspect"
)

// token returns the hub token that an assignment's tokenRef names, if it is
// available.
func (a *Agent) token(ref string) (download.Bearer, bool) {
	if a.Links.Tokens == nil {
		return "", false
	}
	return a.Links.Tokens.Of(ref)
}

// tokenFor is token for a download. It is called before each request, so that a
// replaced or removed token is not used any more.
func (a *Agent) tokenFor(ref string) (download.Bearer, error) {
	if b, ok := a.token(ref); ok {
		return b, nil
	}
	return "", inspect.MissingToken()
}

// followTokens receives the tokens, and retries what waits for one.
func (a *Agent) followTokens(ctx context.Context) error {
	if a.Links.Tokens == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Links.Tokens.Run(ctx) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-a.Links.Tokens.Changed():
			a.inspector.Retry()
		}
	}
}
