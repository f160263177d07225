package weights

import "metalfleet.dev/metalfleet/metal/family"

// maxConfigBytes bounds config.json; the largest known, with an entry for
// every quantised layer, has about 300 kB.
const maxConfigBytes = 4 << 20

// readConfig reads config.json.
func readConfig(text []byte) (*family.Config, error) {
	j := newJSONReader(text, 0)
	v, err := j.value()
	if err != nil {
		return nil, err
	}
	if err := j.end(); err != nil {
		return nil, err
	}
	values, ok := v.(map[string]any)
	if !ok {
		return nil, j.invalid("want an object")
	}
	return family.NewConfig(values), nil
}
