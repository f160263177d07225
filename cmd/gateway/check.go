package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/gateway/hops"
)

// check implements `gateway check`: it follows the path of a request and names the first
// hop that fails.
func check(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := hops.Options{Out: stdout, Key: os.Getenv("METALFLEET_API_KEY")} // not a flag: anyone who can list processes would see it
	set := flag.NewFlagSet("gateway check", flag.ContinueOnError)
	set.SetOutput(stderr)
	kubeconfig := set.String("kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig `file` for the API server; not needed inside a cluster")
	set.StringVar(&o.URL, "url", "http://metalfleet-gateway."+namespace()+".svc", "`URL` of the gateway's Service")
	set.StringVar(&o.Model, "model", "", "`name` of the model to ask (default: the first model that is ready)")
	set.DurationVar(&o.Patience, "patience", 30*time.Second, "how long each step may take")
	if err := set.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if set.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; gateway check takes flags only", set.Arg(0))
	}
	config, err := restConfig(*kubeconfig)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	if o.Reader, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("create client for %s: %w", config.Host, err)
	}
	return hops.Walk(ctx, o)
}
