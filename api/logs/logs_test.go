package logs

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"strings"
	"testing"
)

func TestTheFlagChoosesTheFormat(t *testing.T) {
	for _, args := range [][]string{nil, {"--log-format=text"}, {"--log-format=json"}, {"--log-format=xml"}} {
		var f Format
		set := flag.NewFlagSet("x", flag.ContinueOnError)
		set.SetOutput(io.Discard)
		set.Var(&f, "log-format", Usage)
		if err := set.Parse(args); (err != nil) != strings.HasSuffix(strings.Join(args, ""), "xml") {
			t.Errorf("%v: %v", args, err)
		}
		var out bytes.Buffer
		log := slog.New(f.Handler(&out, slog.LevelInfo))
		log.Debug("hidden")
		log.Info("Mac \"a\"\n", "key", "two\nlines")
		var record struct{ Msg, Key string }
		isJSON := json.Unmarshal(out.Bytes(), &record) == nil
		if isJSON != (f == JSON) || isJSON && record.Key != "two\nlines" || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%v: %q", args, out.String())
		}
	}
}
