//go:build !race

package fleet

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestALargeLoginIsNotParsed: the operator reads a Secret again every few seconds, and a list of logins
// takes twenty times its size while it is parsed.
func TestALargeLoginIsNotParsed(t *testing.T) {
	secret := func(bytes int) *corev1.Secret {
		var b strings.Builder
		b.WriteString(`{"auths":{"registry.example":{"username":"u","password":"p"}`)
		for i := 0; b.Len() < bytes; i++ {
			fmt.Fprintf(&b, `,"%x":{}`, i)
		}
		b.WriteString(`}}`)
		return &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(b.String())}}
	}
	const source = "oci://registry.example/models/chat:1"
	if _, refusal := Credential(secret(32<<10), source); refusal != nil {
		t.Errorf("a Secret of 32 KiB: %v", refusal)
	}
	large, refusal := secret(1<<20), (*Refusal)(nil)
	made := testing.AllocsPerRun(1, func() { _, refusal = Credential(large, source) })
	if refusal == nil || refusal.Reason != v1alpha1.ReasonSecretInvalid || made > 100 {
		t.Errorf("a Secret of 1 MiB: %v after %.0f allocations, want %s", refusal, made, v1alpha1.ReasonSecretInvalid)
	}
}
