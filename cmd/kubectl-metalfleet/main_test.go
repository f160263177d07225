//go:build !race

package main

import (
	"slices"
	"testing"
)

func TestALinkAnswersTheCompletionOfKubectl(t *testing.T) {
	for name, tc := range map[string]struct{ argv, want []string }{
		"by its own name":       {argv: []string{"/bin/kubectl-metalfleet", "nodes"}, want: []string{"nodes"}},
		"by the name of a link": {argv: []string{"/bin/kubectl_complete-metalfleet", "no"}, want: []string{"__complete", "no"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := arguments(tc.argv); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
