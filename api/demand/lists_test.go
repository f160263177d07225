//go:build !race

package demand

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

// TestAReportOfSmallElementsTakesLittleMemory: a gateway that was taken over sends lists whose elements are small on the wire
// and large in memory.
func TestAReportOfSmallElementsTakesLittleMemory(t *testing.T) {
	list := func(element string) string {
		return "[" + strings.Repeat(element+",", (2<<20)/(len(element)+1)) + element + "]"
	}
	var keys strings.Builder
	for i := range 150_000 {
		fmt.Fprintf(&keys, `"%x":%%[1]s,`, i)
	}
	object := func(value string) string {
		return "{" + strings.TrimSuffix(strings.ReplaceAll(keys.String(), "%[1]s", value), ",") + "}"
	}
	half := "[" + strings.Repeat("{},", maxSentModels-1) + "{}]"
	for name, body := range map[string]string{
		"models": `"models":` + list("{}"), "models in another case": `"MODELS":` + list("{}"), "repeated models": `"models":` + half + `,"models":` + half,
		"replicas": `"replicas":` + object("1"), "Macs that were reached": `"reached":` + list(`""`), "other Macs": `"unreached":` + object(`""`),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := json.Unmarshal([]byte(`{"gateway":"g","upMillis":1,`+body+`}`), new(Report))
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc - uint64(len(body)); !errors.Is(err, ErrInvalid) || n > 4<<20 {
			t.Errorf("%s: %d MiB, %v", name, n>>20, err)
		}
	}
}

// TestEveryListOfAReportIsCounted: so that one that is added has a bound.
func TestEveryListOfAReportIsCounted(t *testing.T) {
	of := reflect.TypeFor[Report]()
	for i := range of.NumField() {
		f := of.Field(i)
		if k := f.Type.Kind(); k != reflect.Slice && k != reflect.Map {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		body := fmt.Sprintf(`{%q:[%s0]}`, name, strings.Repeat("0,", maxReplicas))
		if err := json.Unmarshal([]byte(body), new(Report)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
