"""Groups and what they have and ask for. Names of attributes are the columns' names;
`store/tables` explains each."""
