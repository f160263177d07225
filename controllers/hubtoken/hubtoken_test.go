//go:build !race

package hubtoken

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestChangeTouchesHubTokensAlone(t *testing.T) {
	s := &corev1.Secret{Data: map[string][]byte{
		"tls.crt": []byte("certificate"), "hub-token.old": []byte("x"), "hub-token.away": []byte("kept"), "hub-token.rotated": []byte("before"),
	}}
	w := wants{
		refs:    []string{"rotated", "away", "new", "refused"},
		tokens:  map[string][]byte{"rotated": []byte("after"), "new": []byte("n")},
		unknown: map[string]bool{"away": true},
	}
	if !change(s, w) {
		t.Error("nothing changed")
	}
	var got []string
	for k, v := range s.Data {
		got = append(got, k+"="+string(v))
	}
	want := map[string]bool{"tls.crt=certificate": true, "hub-token.away=kept": true, "hub-token.rotated=after": true, "hub-token.new=n": true}
	if len(got) != len(want) {
		t.Errorf("%s", strings.Join(got, " "))
	}
	for _, g := range got {
		if !want[g] {
			t.Errorf("it holds %s", g)
		}
	}
	if change(s, w) {
		t.Error("it is written again although nothing changed")
	}
}
