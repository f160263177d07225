// Package hops follows the path of a request, hop by hop, and names the first one that
// fails: the Service's name, the gateway, a Mac, a model.
//
// It owns the order of the hops and the advice for each failure; `helm test` runs it. It
// changes nothing and generates at most one token.
//
// Start reading at Walk.
package hops

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const (
	// lookupTimeout bounds one lookup of the Service's name.
	lookupTimeout = 5 * time.Second
	// maxAddresses of it are printed.
	maxAddresses = 8
)

// Options configure a walk.
type Options struct {
	// URL of the gateway's Service, without a path.
	URL string
	// Model to test; empty means the first one with a ready replica.
	Model string
	// Key is the API key to use; without one, the walk stops at a gateway that requires a
	// key.
	Key string
	// Reader reads MacNodes and ModelDeployments.
	Reader client.Reader
	// Patience is how long each hop is retried: a Service becomes routable a moment after
	// its Pods are ready.
	Patience time.Duration
	// Out receives one line per hop.
	Out io.Writer
	// Resolver of the Service's name; nil means the system's.
	Resolver *net.Resolver
}

// Error is the hop that failed, with the next step.
type Error struct {
	// Hop is DNS, gateway, Mac or model.
	Hop string
	Err error
	Do  string
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%s: %v; %s", e.Hop, e.Err, e.Do) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Walk tests the hops in order and stops at the first failure. Without a ModelDeployment
// there is no model to test; Walk reports that and succeeds.
func Walk(ctx context.Context, o Options) error {
	u, err := url.Parse(o.URL)
	if err != nil || u.Hostname() == "" {
		return fmt.Errorf("--url %q is not a valid URL such as http://metalfleet-gateway.metalfleet-system.svc", o.URL)
	}
	for _, hop := range []struct {
		name, do string
		walk     func(context.Context) (string, error)
	}{
		{"DNS", "check the cluster's DNS: kubectl -n kube-system get pods -l k8s-app=kube-dns", func(ctx context.Context) (string, error) { return o.resolve(ctx, u.Hostname()) }},
		{"gateway", "check its Pods: kubectl get pods -l app.kubernetes.io/component=gateway, and their logs", o.models},
		{"Mac", "check the Macs: kubectl get mac, and add one if there is none (docs/how-to/macs.md)", o.mac},
		{"model", "check its conditions: kubectl describe mdep", o.answer},
	} {
		said, err := o.patiently(ctx, hop.walk)
		if err != nil {
			return &Error{hop.name, err, hop.do}
		}
		fmt.Fprintf(o.Out, "%-8s %s\n", hop.name, said)
	}
	return nil
}

// patiently retries a hop until it succeeds or Patience has passed.
func (o Options) patiently(ctx context.Context, walk func(context.Context) (string, error)) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Patience)
	defer cancel()
	for {
		said, err := walk(ctx)
		if err == nil {
			return said, nil
		}
		again := time.NewTimer(500 * time.Millisecond)
		select {
		case <-ctx.Done():
			again.Stop()
			return "", err
		case <-again.C:
		}
	}
}

func (o Options) resolve(ctx context.Context, host string) (string, error) {
	resolver := o.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout) // a lost packet leaves time for another attempt
	defer cancel()
	addresses, err := resolver.LookupHost(ctx, host)
	if err != nil {
		return "", err
	}
	return resolved(host, addresses), nil
}

// resolved names the first addresses of a host.
func resolved(host string, addresses []string) string {
	if more := len(addresses) - maxAddresses; more > 0 {
		return fmt.Sprintf("%s resolves to %v and %d more", host, addresses[:maxAddresses], more)
	}
	return fmt.Sprintf("%s resolves to %v", host, addresses)
}

func (o Options) models(ctx context.Context) (string, error) {
	var list openai.ModelList
	switch err := o.call(ctx, http.MethodGet, "/v1/models", nil, &list); {
	case o.mustBringKey(err):
		return "responds and requires an API key", nil
	case err != nil:
		return "", err
	}
	return fmt.Sprintf("responds and knows %d models", len(list.Data)), nil
}

// mustBringKey reports whether the gateway refused the request only because the walk has no
// key.
func (o Options) mustBringKey(err error) bool {
	var e *openai.Error
	return o.Key == "" && errors.As(err, &e) && e.Code == openai.CodeInvalidAPIKey
}

func (o Options) mac(ctx context.Context) (string, error) {
	var macs v1alpha1.MacNodeList
	if err := o.Reader.List(ctx, &macs); err != nil {
		return "", err
	}
	ready := 0
	for i := range macs.Items {
		if meta.IsStatusConditionTrue(macs.Items[i].Status.Conditions, v1alpha1.ConditionReady) {
			ready++
		}
	}
	if ready == 0 {
		return "", fmt.Errorf("none of %d Macs is Ready", len(macs.Items))
	}
	return fmt.Sprintf("%d of %d are Ready", ready, len(macs.Items)), nil
}

// answer requests one token from one model.
func (o Options) answer(ctx context.Context) (string, error) {
	name := o.Model
	if name == "" {
		var all v1alpha1.ModelDeploymentList
		if err := o.Reader.List(ctx, &all); err != nil {
			return "", err
		}
		if len(all.Items) == 0 {
			return "there is no ModelDeployment yet: no request was sent", nil
		}
		for i := range all.Items {
			if md := &all.Items[i]; meta.IsStatusConditionTrue(md.Status.Conditions, v1alpha1.ConditionAvailable) {
				name = md.Namespace + "/" + md.Name
				break
			}
		}
		if name == "" {
			return "", fmt.Errorf("none of %d ModelDeployments is Available", len(all.Items))
		}
	}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	body := struct {
		Model     string    `json:"model"`
		MaxTokens int       `json:"max_tokens"`
		Messages  []message `json:"messages"`
	}{Model: name, MaxTokens: 1, Messages: []message{{Role: "user", Content: "Say yes."}}}
	began := time.Now()
	var answer struct {
		Usage struct {
			Tokens int `json:"completion_tokens"`
		} `json:"usage"`
	}
	switch err := o.call(ctx, http.MethodPost, "/v1/chat/completions", body, &answer); {
	case o.mustBringKey(err):
		return "no request was sent: METALFLEET_API_KEY is not set", nil
	case err != nil:
		return "", fmt.Errorf("%s: %w", name, err)
	}
	if answer.Usage.Tokens < 1 {
		return "", fmt.Errorf("%s: the response has no token", name)
	}
	return fmt.Sprintf("%s answered after %d ms", name, time.Since(began).Milliseconds()), nil
}

// maxAnswer bounds the responses that are read.
const maxAnswer = 4 << 20

func (o Options) call(ctx context.Context, method, path string, body, into any) error {
	var sent io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		sent = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, o.URL+path, sent)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if o.Key != "" {
		req.Header.Set("Authorization", "Bearer "+o.Key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusUnauthorized {
		return openai.ParseError(resp.StatusCode, resp.Header, b)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(b[:min(len(b), 300)]))
	}
	if err := json.Unmarshal(b, into); err != nil {
		return errors.Join(fmt.Errorf("%s %s: the response is not JSON", method, path), err)
	}
	return nil
}
