//go:build !race

package main

import (
	"slices"
	"testing"
)

func TestALinkAnswersTheCompletionOfKubectl(t *testing.T) {
	for name, tc := range map[string]struct{ argv, want []string }{
		"by its own name":       {[]string{"/bin/kubectl-metalfleet", "nodes"}, []string{"nodes"}},
		"by the name of a link": {[]string{"/bin/kubectl_complete-metalfleet", "no"}, []string{"__complete", "no"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := arguments(tc.argv); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
