"""A fleet under full load for as long as wanted: does any process go on growing?"""
