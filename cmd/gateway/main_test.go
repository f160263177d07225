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
		"version":              {args: []string{"--version"}, out: "gateway unversioned\n"},
		"help":                 {args: []string{"--help"}},
		"an argument":          {args: []string{"serve"}, err: `unexpected argument "serve"`},
		"an unknown flag":      {args: []string{"--port=1"}, err: "not defined: -port"},
		"a negative drain":     {args: []string{"--drain-timeout=-1s"}, err: "negative"},
		"a negative try":       {args: []string{"--try-timeout=-1s"}, err: "--try-timeout"},
		"a negative request":   {args: []string{"--request-timeout=-1s"}, err: "--request-timeout"},
		"a queue without time": {args: []string{"--queue-timeout=0s"}, err: "--queue-requests=0"},
		"a queue of no bytes":  {args: []string{"--queue-bytes=0"}, err: "--queue-requests=0"},
		"a negative queue":     {args: []string{"--queue-requests=-1"}, err: "--queue-requests"},
		"keys with Secrets":    {args: []string{"--namespace=a", "--api-keys-namespace=a"}, err: "--api-keys-namespace"},
		"no such kubeconfig":   {args: []string{"--kubeconfig=/nowhere/at/all"}, err: "/nowhere/at/all"},
		"a bad address":        {args: []string{"--kubeconfig=testdata/kubeconfig", "--listen=nonsense"}, err: "--listen"},
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
