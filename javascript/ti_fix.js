// Loaded by the WebUI into its page. Only what Python cannot do belongs here, and so far there is nothing of that kind.
// Ids of elements begin with "ti_fix_".
