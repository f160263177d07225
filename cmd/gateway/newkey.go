package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"metalfleet.dev/metalfleet/gateway/keys"
)

// newKey implements `gateway new-key`: it creates an API key, prints the token once to
// stderr, and writes the Secret for kubectl apply to stdout. It makes no network
// connection.
func newKey(args []string, now time.Time, stdout, stderr io.Writer) error {
	name, namespace, grant, err := parseNewKey(args, now, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(validation.IsDNS1123Label(namespace)) > 0 {
		return fmt.Errorf("--namespace %q is not a valid namespace name", namespace)
	}
	secret, token, err := keys.NewSecret(namespace, name, grant)
	if err != nil {
		return err
	}
	manifest, err := yaml.Marshal(secret)
	if err != nil {
		return fmt.Errorf("write the Secret: %w", err)
	}
	if _, err := stdout.Write(manifest); err != nil {
		return fmt.Errorf("write the Secret: %w", err)
	}
	_, err = fmt.Fprintf(stderr, "The key is shown only once and is not valid until its Secret is applied:\n%s\n", token)
	return err
}

func parseNewKey(args []string, now time.Time, out io.Writer) (name, namespace string, g keys.Grant, err error) {
	set := flag.NewFlagSet("gateway new-key", flag.ContinueOnError)
	set.SetOutput(out)
	set.StringVar(&name, "name", "", "`name` of the key: used for its Secret, and in logs and metrics")
	set.StringVar(&namespace, "namespace", "metalfleet-api-keys", "`namespace` of API keys (the gateway's --api-keys-namespace)")
	models := set.String("models", "", "comma-separated `models` that the key may use: served names, NAMESPACE/NAME, or * for all")
	namespaces := set.String("model-namespaces", "", "comma-separated `namespaces` of which the key may use every model")
	expires := set.String("expires", "2160h", "how long the key is valid, such as 720h; or never")
	set.Func("requests-per-minute", "maximum `number` of requests per minute at each gateway (default: no limit)", positive(&g.RequestsPerMinute))
	set.Func("tokens-per-minute", "maximum `number` of prompt and response tokens per minute at each gateway (default: no limit)", positive(&g.TokensPerMinute))
	set.Int64Var(&g.Priority, "priority", 0, "most urgent `priority` that its requests may set, and the priority of requests that set none: lower values are served first, keys without this flag have 0")
	set.StringVar(&g.Tenant, "tenant", "", "`tenant` of the key: keys of one tenant share stored responses and cached prompts; default: the key itself")
	set.BoolVar(&g.StrictFields, "strict-fields", false, "refuse request fields that have no effect, instead of ignoring them")
	if err := set.Parse(args); err != nil {
		return "", "", g, err
	}
	if set.NArg() > 0 {
		return "", "", g, fmt.Errorf("unexpected argument %q; gateway new-key takes flags only", set.Arg(0))
	}
	if name == "" {
		return "", "", g, errors.New("--name is missing: name the key after the application that uses it")
	}
	if *models == "" && *namespaces == "" {
		return "", "", g, errors.New("--models or --model-namespaces is missing: list what the key may use, or write --models='*'")
	}
	g.Models, g.ModelNamespaces = split(*models), split(*namespaces)
	if *expires != "never" {
		d, err := time.ParseDuration(*expires)
		if err != nil || d <= 0 {
			return "", "", g, fmt.Errorf("--expires %q is neither a duration such as 720h nor never", *expires)
		}
		g.Expires = now.Add(d)
	}
	return name, namespace, g, nil
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	out := strings.Split(list, ",")
	for i := range out {
		out[i] = strings.TrimSpace(out[i])
	}
	return out
}

func positive(to *int64) func(string) error {
	return func(text string) error {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 {
			return errors.New("must be a whole number of at least 1; omit it for no limit")
		}
		*to = n
		return nil
	}
}
