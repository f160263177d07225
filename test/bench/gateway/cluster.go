package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/test/bench/peers"
	"metalfleet.dev/metalfleet/test/testenv"
)

const (
	namespace     = "metalfleet-system"
	keysNamespace = "metalfleet-api-keys"
)

// newGateway is the gateway's program. Its API server holds what the operator and
// an agent would have written there.
func (w *world) newGateway(ctx context.Context, upstream *net.TCPAddr) (*target, error) {
	env, err := testenv.Start(ctx, testenv.Options{})
	if err != nil {
		return nil, err
	}
	w.Cleanup(env.Stop)
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	c, err := client.New(env.Config(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	key, err := w.writeObjects(ctx, c, upstream)
	if err != nil {
		return nil, err
	}
	address, err := peers.FreeAddress()
	if err != nil {
		return nil, err
	}
	health, err := peers.FreeAddress()
	if err != nil {
		return nil, err
	}
	program := filepath.Join("bin", "gateway")
	return w.program(nameOurs, address, key, []string{program, "--kubeconfig=" + env.Kubeconfig, "--namespace=" + namespace,
		"--api-keys-namespace=" + keysNamespace, "--listen=" + address, "--health=" + health, "--metrics=127.0.0.1:0", "--drain-timeout=0s"}, answers("http://"+health+"/readyz")), nil
}

// writeObjects creates a model with replicas on the scripted agent and an API key
// for it, which it returns.
func (w *world) writeObjects(ctx context.Context, c client.Client, upstream *net.TCPAddr) (key string, err error) {
	data, err := w.certificates.identity()
	if err != nil {
		return "", err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: identity.SecretName}, Data: data}
	grant, key, err := keys.NewSecret(keysNamespace, "bench", keys.Grant{Models: []string{"bench"}, TokensPerMinute: 1_000_000_000, RequestsPerMinute: 1_000_000_000})
	if err != nil {
		return "", err
	}
	named := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: macName}}
	md := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bench"},
		Spec: v1alpha1.ModelDeploymentSpec{Model: v1alpha1.ModelSource{Source: "file://bench.gguf"}}}
	for _, o := range []client.Object{named(namespace), named(keysNamespace), secret, grant, mac, md} {
		if err := c.Create(ctx, o); err != nil {
			return "", fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
		}
	}
	if err := w.certificates.certify(macName, string(mac.UID)); err != nil {
		return "", err
	}
	status := []client.Object{mac, md}
	for n := range proxyReplicas {
		mr := replica(md, n)
		if err := c.Create(ctx, mr); err != nil {
			return "", fmt.Errorf("create a replica: %w", err)
		}
		mr.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Bench", LastTransitionTime: metav1.Now()}}
		status = append(status, mr)
	}
	mac.Status.Address = &v1alpha1.MacAddress{Host: upstream.IP.String(), Port: int32(upstream.Port)}
	md.Status.ServedNames = []string{"bench", "default/bench"}
	for _, o := range status {
		if err := c.Status().Update(ctx, o); err != nil {
			return "", fmt.Errorf("status of %T: %w", o, err)
		}
	}
	return key, nil
}

// proxyReplicas are enough for all waiting streams, so that no request queues.
const proxyReplicas = 4

func replica(md *v1alpha1.ModelDeployment, n int) *v1alpha1.ModelReplica {
	zeros := strings.Repeat("0", 64)
	return &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: md.Namespace, Name: fmt.Sprint("bench-", n)}, Spec: v1alpha1.ModelReplicaSpec{
		DeploymentRef: v1alpha1.DeploymentReference{Name: md.Name, UID: string(md.UID)},
		Revision:      "bench-1", Epoch: 1, ReservedBytes: 1, Desired: v1alpha1.DesiredRunning, NodeName: macName,
		Context: v1alpha1.ContextLimits{MaxTokens: 16, MaxConcurrentRequests: 256, KVCacheTokens: 4096},
		Model: model.Record{Source: "file://bench.gguf", Format: "gguf", Digest: "sha256:" + zeros, Facts: model.Facts{Architecture: "llama"},
			Files: []model.File{{Path: "bench.gguf", Bytes: 1, SHA256: zeros}}},
	}}
}
