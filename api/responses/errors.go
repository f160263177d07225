package responses

import "metalfleet.dev/metalfleet/api/openai"

// errorEvent is a stream error of this API that belongs to no response, for
// example a lost connection.
type errorEvent struct {
	Type    string  `json:"type"`
	Code    *string `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
	// SequenceNumber is 0 when the sender does not count events.
	SequenceNumber int `json:"sequence_number"`
}

// ErrorEvent returns the data of the event "error".
func ErrorEvent(e *openai.Error) ([]byte, error) {
	out := errorEvent{Type: "error", Message: e.Message}
	if e.Code != "" {
		out.Code = &e.Code
	}
	if e.Param != "" {
		out.Param = &e.Param
	}
	return openai.Marshal(out)
}
