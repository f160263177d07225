package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/test/fleet"
)

const keysNamespace = "metalfleet-api-keys"

// held are keys as their holders send them.
type held struct{ good, narrow, slow string }

// makeKeys makes three, as an administrator would, and waits until the gateway
// knows the last of them.
func makeKeys(ctx context.Context, f *fleet.Fleet) (held, error) {
	var k held
	for _, one := range []struct {
		name  string
		grant keys.Grant
		token *string
	}{
		{"narrow", keys.Grant{Models: []string{"another"}}, &k.narrow},
		{"slow", keys.Grant{Models: []string{"*"}, RequestsPerMinute: 1}, &k.slow},
		{"good", keys.Grant{Models: []string{"default/" + deployment}, Expires: time.Now().Add(time.Hour), RequestsPerMinute: 1000, TokensPerMinute: 1_000_000}, &k.good},
	} {
		secret, token, err := keys.NewSecret(keysNamespace, one.name, one.grant)
		if err != nil {
			return k, err
		}
		if err := f.Client.Create(ctx, secret); err != nil {
			return k, fmt.Errorf("create the key %s: %w", one.name, err)
		}
		*one.token = token
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	return k, fleet.Poll(ctx, 50*time.Millisecond, "the gateway knows the keys", func(ctx context.Context) error { return fleet.KnowsKey(ctx, f.URL, k.good) })
}

// wanted is what the official client has to make of each case.
var wanted = map[string]string{
	"good":              "answered",
	"wrong":             "AuthenticationError 401 invalid_api_key",
	"foreign":           "AuthenticationError 401 invalid_api_key",
	"narrow":            "NotFoundError 404 model_not_found",
	"narrow, one model": "NotFoundError 404 model_not_found",
	"narrow, models":    "0",
	"good, models":      "1",
	"slow":              "answered",
	"slow, again":       "RateLimitError 429 rate_limit_exceeded of 1, again later",
}

// refusals runs refusals.py.
func refusals(ctx context.Context, url, root, python string, k held) error {
	cmd := exec.CommandContext(ctx, python, filepath.Join(root, "test", "failover", "refusals.py"), url, deployment)
	cmd.Env = append(os.Environ(), "GOOD_KEY="+k.good, "NARROW_KEY="+k.narrow, "SLOW_KEY="+k.slow)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("refusals.py: %w", err)
	}
	var got map[string]string
	if err := json.Unmarshal(out, &got); err != nil {
		return fmt.Errorf("refusals.py printed %q: %w", out, err)
	}
	if err := judgeRefusals(got); err != nil {
		return err
	}
	fmt.Printf("   API keys: %d cases are what the client expects of OpenAI\n", len(got))
	return nil
}

func judgeRefusals(got map[string]string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if got[name] != wanted[name] {
			errs = append(errs, fmt.Errorf("key case %q: the client says %q, want %q", name, got[name], wanted[name]))
		}
	}
	return errors.Join(errs...)
}
