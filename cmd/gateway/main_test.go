package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestFlags(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		out  string
		err  string
	}{
		"version":             {[]string{"--version"}, "gateway unversioned\n", ""},
		"help":                {[]string{"--help"}, "", ""},
		"an argument":         {[]string{"serve"}, "", `unexpected argument "serve"`},
		"an unknown flag":     {[]string{"--port=1"}, "", "not defined: -port"},
		"a negative drain":    {[]string{"--drain-timeout=-1s"}, "", "negative"},
		"keys beside Secrets": {[]string{"--namespace=a", "--api-keys-namespace=a"}, "", "--api-keys-namespace"},
		"no such kubeconfig":  {[]string{"--kubeconfig=/nowhere/at/all"}, "", "/nowhere/at/all"},
		"a bad address":       {[]string{"--kubeconfig=testdata/kubeconfig", "--listen=nonsense"}, "", "--listen"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			err := run(t.Context(), tc.args, &out, &errs)
			if out.String() != tc.out {
				t.Errorf("printed %q", out.String())
			}
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
		})
	}
}
