//go:build !race

package main

import (
	"strings"
	"testing"
)

const tables = `NAME                                     MODEL             READY   STATUS   MEMORY      FREED   AGE
modeldeployment.metalfleet.dev/smollm2   file://tiny.gguf  1/1     Ready    181.3 MiB   0       12s

NAME                                       DEPLOYMENT   MAC      READY   STATUS   PROGRESS   MEMORY      FREED   AGE
modelreplica.metalfleet.dev/smollm2-abcd   smollm2      studio   True    Ready    Serving    181.3 MiB   0       12s

NAME                             READY   CHIP      MEMORY      CEILING     RESERVED    USED        FREED   AGE
macnode.metalfleet.dev/macbook   True    M4Max     64.0 GiB    48.0 GiB    0           0           0       14s
macnode.metalfleet.dev/studio    True    M2Ultra   192.0 GiB   144.0 GiB   190.0 MiB   181.3 MiB   0       14s
`

func TestTheTableShowsWhatWasPromised(t *testing.T) {
	if err := checkTable(tables, "file://tiny.gguf"); err != nil {
		t.Errorf("a good table: %v", err)
	}
	for name, broken := range map[string]string{
		"no memory":        strings.Replace(tables, "181.3 MiB", "         ", 1),
		"not ready":        strings.Replace(tables, "1/1", "0/1", 1),
		"another model":    strings.Replace(tables, "tiny.gguf ", "other.gguf", 1),
		"raw bytes":        strings.Replace(tables, "181.3 MiB", "190106624", 1),
		"no freed":         strings.Replace(tables, "181.3 MiB   0  ", "181.3 MiB      ", 1),
		"no used on a Mac": strings.Replace(tables, "48.0 GiB    0           0           0", "48.0 GiB    0                       0", 1),
		"no Macs":          tables[:strings.Index(tables, "NAME                             READY   CHIP")],
	} {
		if broken == tables {
			t.Fatalf("%s: nothing was broken", name)
		}
		if err := checkTable(broken, "file://tiny.gguf"); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestFreedBytesMustAgreeWithProc(t *testing.T) {
	const weights = 93_000_000
	for name, test := range map[string]struct {
		freed, read int64
		ok          bool
	}{
		"equal":                     {freed: 180_000_000, read: 180_000_000, ok: true},
		"4 percent more":            {freed: 187_200_000, read: 180_000_000, ok: true},
		"6 percent less":            {freed: 169_200_000, read: 180_000_000},
		"6 percent more":            {freed: 190_800_000, read: 180_000_000},
		"equal but only the file":   {freed: 93_000_000, read: 93_000_000},
		"nothing":                   {read: 180_000_000},
		"nothing, and nothing read": {},
	} {
		if err := checkBytes("the Event", test.freed, test.read, weights); (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheTinyModelTakesTheSamplesPlace(t *testing.T) {
	b, err := withSource([]byte("a: 1\n  model:\n    # source below\n    source: file://big.gguf\n  context:\n    tokens: 2048      # x\n"), "file://tiny/tiny.gguf")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(b), "a: 1\n  model:\n    # source below\n    source: file://tiny/tiny.gguf\n  context:\n    tokens: 256\n"; got != want {
		t.Errorf("manifest\n%s\nwant\n%s", got, want)
	}
	if _, err := withSource([]byte("kind: List\n"), "file://x"); err == nil {
		t.Error("a manifest without a source was accepted")
	}
}
