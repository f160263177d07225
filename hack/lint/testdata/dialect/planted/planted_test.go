package planted

// askers of tests count apart: whatever they are.
var askers = "to and fro"
