package demand

import (
	"encoding/json"
	"fmt"

	"metalfleet.dev/metalfleet/api/openai"
)

// maxSentModels bounds the models of a report before Cut: an old gateway does not cut its reports.
const maxSentModels = 4 * maxModels

// count is the number of elements of a list, or of members of an object, all those of a repeated field together.
type count int

// UnmarshalJSON decodes no element.
func (c *count) UnmarshalJSON(raw []byte) error {
	for range openai.Elements(raw) {
		*c++
	}
	for range openai.Members(raw) {
		*c++
	}
	return nil
}

// UnmarshalJSON refuses a report with longer lists than Check or Cut accept before it decodes them: an element of
// three bytes takes more than a hundred in memory.
func (r *Report) UnmarshalJSON(b []byte) error {
	var n struct {
		Models    count `json:"models"`
		Replicas  count `json:"replicas"`
		Reached   count `json:"reached"`
		Unreached count `json:"unreached"`
	}
	if err := json.Unmarshal(b, &n); err != nil {
		return err
	}
	if n.Models > maxSentModels || n.Replicas > maxReplicas || n.Reached+n.Unreached > maxMacs {
		return fmt.Errorf("%w: %d models, %d replicas, %d Macs", ErrInvalid, n.Models, n.Replicas, n.Reached+n.Unreached)
	}
	type plain Report
	return json.Unmarshal(b, (*plain)(r))
}
