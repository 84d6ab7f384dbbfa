module manynsqs

go 1.21
