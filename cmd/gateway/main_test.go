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
		"a negative try":      {[]string{"--try-timeout=-1s"}, "", "--try-timeout"},
		"a negative request":  {[]string{"--request-timeout=-1s"}, "", "--request-timeout"},
		"a room for nobody":   {[]string{"--queue-timeout=0s"}, "", "--queue-requests=0"},
		"a room of no bytes":  {[]string{"--queue-bytes=0"}, "", "--queue-requests=0"},
		"a room of less":      {[]string{"--queue-requests=-1"}, "", "--queue-requests"},
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
