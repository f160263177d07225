package dialect

import (
	"strings"

	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/rerank"
	"metalfleet.dev/metalfleet/api/responses"
)

// OtherField is the label of ignored fields that no API documents.
const OtherField = "other"

// unused lists the fields without effect of every route, by its path.
func unused() map[string][]openai.Place {
	return map[string][]openai.Place{
		PathChat:        openai.UnusedOfChats(),
		PathCompletions: openai.UnusedOfCompletions(),
		PathEmbeddings:  openai.UnusedOfEmbeddings(),
		PathRerank:      rerank.Unused(),
		PathRerankV2:    rerank.Unused(),
		PathMessages:    anthropic.UnusedOfMessages(),
		PathCountTokens: anthropic.UnusedOfCounts(),
		PathResponses:   responses.Unused(),
		PathInputTokens: responses.Unused(),
	}
}

// FieldLabels returns a function that maps the name of an ignored field, as a
// decoder returns it, to a label for metrics: the last member of its path, if it
// is one that is known to be ignored, and OtherField for all others. Clients
// choose names, and the number of labels is bounded.
func FieldLabels() func(name string) string {
	known := map[string]bool{"include": true, "system": true, "tools": true} // elements of these are left out
	for _, places := range unused() {
		for _, p := range places {
			for _, u := range p.Unused {
				known[u.Name] = known[u.Name] || !u.Refused
			}
		}
	}
	return func(name string) string {
		if at := strings.LastIndexByte(name, '['); at >= 0 && strings.HasSuffix(name, "]") {
			name = name[:at] // tools of tools[web_search]
		}
		member := name[strings.LastIndexByte(name, '.')+1:]
		if known[member] {
			return member
		}
		return OtherField
	}
}
